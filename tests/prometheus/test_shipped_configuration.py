"""The shipped configuration is one that Debian's Prometheus and Alertmanager take."""

from __future__ import annotations

import subprocess

from support.prometheus import DEPLOY, needs_prometheus

pytestmark = needs_prometheus


def test_prometheus_and_alertmanager_take_the_shipped_configuration() -> None:
    for command in (
        ["promtool", "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
