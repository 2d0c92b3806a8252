"""A server that makes everybody wait: an operator sees why nothing comes, and until when."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from support.downloads import stoker
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import LoopbackHub, noise
from support.waiting import wait_until
from support.watchdogs import WATCHDOG, from_hub, put


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.mark.parametrize("retry_after", ["3600", "date 3600"])
def test_a_wait_that_a_server_asks_for_stands_in_status_event_and_metric(
    retry_after: str, hub: LoopbackHub, tmp_path: Path
) -> None:
    repo = "org/throttled"
    put(hub, repo, {f"{number}.parquet": noise(1000, number) for number in range(3)})
    hub.fault("status", on="resolve", path=repo, code=429, retry_after=retry_after, times=-1)
    data = from_hub(tmp_path, hub, repo)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: data.status(WATCHDOG).get("waits"), what="the wait in the status")
        wait_until(lambda: data.events(WATCHDOG, "downloads_wait"), what="the event")
        told = stoker("status", data.file).stdout
        assert re.search(r"waits +3 files wait, tried again at \S+Z: http://\S+ answers 429", told), told
        (event,) = data.events(WATCHDOG, "downloads_wait")
        assert 3500 < event["retry_in_s"] <= 3600
        page = re.search(r"http://\S+/metrics", told)
        assert page is not None
        metrics = urllib.request.urlopen(page[0], timeout=10).read().decode()
        assert re.search(r'download_paused\{.*reason="server"\} 1\.0', metrics)
    finally:
        assert daemon.stop() == 0
