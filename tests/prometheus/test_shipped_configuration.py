"""The shipped configuration is one that Debian's Prometheus and Alertmanager take."""

from __future__ import annotations

import subprocess

import pytest

from support.prometheus import DEPLOY, needs_prometheus

pytestmark = needs_prometheus


def test_prometheus_and_alertmanager_take_the_shipped_configuration() -> None:
    for command in (
        ["promtool", "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=StokerWatchdog", "severity=info"], "dead-mans-switch"),
        (["alertname=StokerDaemonDown", "severity=critical"], "page"),
        (["alertname=StokerDownloadStalled", "severity=warning"], "mail"),
        (["alertname=StokerGpuShared", "severity=info"], "nobody"),
    ],
)
def test_an_alert_goes_where_its_severity_says(labels: list[str], receiver: str) -> None:
    command = ["amtool", "config", "routes", "test", "--config.file=alertmanager.yml", *labels]
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == receiver
