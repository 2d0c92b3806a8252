"""How fast a source sends, measured without keeping anything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.kit.workers.parent import Worker
from support.fetching import hub_file
from support.loopback_hub import REPO, LoopbackHub, noise
from support.waiting import wait_until


def probed(hub: LoopbackHub, files: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    repo = {"repo": REPO, "repo_type": "dataset", "endpoint": hub.endpoint}
    task = {"files": files, "seconds": seconds, "hub": repo, "token_file": None}
    environ = {"HF_TOKEN": "", "CREDENTIALS_DIRECTORY": "", "NO_PROXY": "*"}
    worker = Worker.start("stoker.corpus.source.probe_worker", task, name="probe", environ=environ)
    try:
        ended = wait_until(worker.poll)
    finally:
        worker.stop(0)
    assert ended.result is not None, ended
    return ended.result


def test_the_rate_is_measured_over_what_came_in_time_and_a_refusal_is_told(tmp_path: Path) -> None:
    with LoopbackHub(tmp_path / "hub") as hub:
        files = [asdict(hub_file(hub, f"{i}.parquet", noise(100_000, i))) for i in range(2)]
        found = probed(hub, files, 60.0)
        assert (found["status"], found["bytes"]) == ("probed", 200_000) and 0 < found["seconds"] < 60
        hub.fault("stall", path="0.parquet", after=50_000)
        found = probed(hub, files[:1], 2.0)
        assert found["status"] == "probed" and found["bytes"] <= 50_000
        hub.control("set", gated={f"dataset/{REPO}": "secret"})
        found = probed(hub, files, 60.0)
        assert (found["status"], found["class"]) == ("failed", "gated")
