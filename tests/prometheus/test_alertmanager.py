"""Alerts of a real daemon go through a real Alertmanager to a webhook, and a dead daemon quiets its stall."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stoker.store.layout import DOWNLOAD_WATCHDOG
from support.downloads import ENVIRON, hub_pipeline, put_parquet
from support.loopback_hub import LoopbackHub
from support.processes import daemon_command, start_daemon
from support.prometheus import DEPLOY, Alertmanager, Prometheus, needs_prometheus
from support.waiting import wait_until

pytestmark = needs_prometheus
STALLED, DOWN, WATCHDOG = "StokerDownloadStalled", "StokerDaemonDown", "StokerWatchdog"


@pytest.fixture
def impatient(tmp_path: Path) -> Path:
    """The shipped rules, but an alert fires as soon as it holds."""
    folder = tmp_path / "rules"
    folder.mkdir()
    for file in (DEPLOY / "rules").glob("*.yml"):
        content = yaml.safe_load(file.read_text())
        for rule in (rule for group in content["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "0s"
        (folder / file.name).write_text(yaml.safe_dump(content))
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path / "hub") as started:
        yield started


def test_a_stall_is_delivered_until_its_daemon_is_dead(
    tmp_path: Path, hub: LoopbackHub, impatient: Path
) -> None:
    put_parquet(hub, files=1, rows=50)
    hub.fault("stall", times=-1)
    pipeline = hub_pipeline(tmp_path / "p", hub, download__stall="1s", download__attempts=1000)
    with tempfile.TemporaryDirectory(prefix="stoker-alerts-") as runtime:
        environ = {**ENVIRON, "RUNTIME_DIRECTORY": runtime}
        command = daemon_command(DOWNLOAD_WATCHDOG, pipeline.file)
        daemon = start_daemon(command, tmp_path / "errors", environ=environ)
        try:
            with (
                Alertmanager(tmp_path / "alertmanager") as manager,
                Prometheus(
                    tmp_path / "prometheus",
                    targets=Path(runtime) / "targets",
                    rules=impatient,
                    alertmanager=manager.address,
                ),
            ):

                def delivered(name: str) -> list[tuple[str, str, str]]:
                    found = [alert for alert in manager.delivered if alert["labels"]["alertname"] == name]
                    return [
                        (alert["receiver"], alert["status"], alert["annotations"]["summary"])
                        for alert in found
                    ]

                stalled = wait_until(lambda: delivered(STALLED), what="the stall at the webhook")[0]
                assert stalled[:2] == ("mail", "firing")
                assert stalled[2].startswith("The download of data has been stalled for ")
                assert manager.alerts()[STALLED] == "active"

                daemon.kill()

                down = wait_until(lambda: delivered(DOWN), what="the death at the webhook")
                assert down == [("page", "firing", "download_watchdog of data does not answer.")]
                wait_until(lambda: manager.alerts()[STALLED] == "suppressed", what="the stall's inhibition")
                assert "resolved" not in {status for _, status, _ in delivered(STALLED)}
                assert delivered(WATCHDOG)[0][0] == "dead-mans-switch"
                assert manager.alerts()[WATCHDOG] == manager.alerts()[DOWN] == "active"
        finally:
            daemon.kill()
