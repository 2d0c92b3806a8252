"""`stoker describe` beside a real run whose trainer is killed, and after all daemons are down."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import signal_process
from support.training import make_training
from support.waiting import wait_until


def test_a_killed_run_is_described_beside_it_and_after_it_from_disk_alone(
    shard_sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_training(shard_sets, tmp_path, train__steps=200)

    def told(thing: object) -> dict[str, Any]:
        assert exit_code(["describe", str(run.data.file), str(thing), "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert answer["unread"] == []
        return answer

    daemon = run.start()
    try:
        trainer = run.wait_for_step(12)
        signal_process(trainer, signal.SIGSTOP)  # so that it is not done before it is looked at
        first = run.events("trainer_launched")[0]["launch"]
        wait_until(lambda: told(first)["facts"]["is_running"], 60, "a status with the launch")
        assert told(first)["facts"]["followed_by"] is None
        assert told("train_supervisor")["facts"]["pid"] == daemon.pid
        assert told(200)["facts"]["state"] == "planned"
        signal_process(trainer, signal.SIGKILL)
        wait_until(lambda: run.record()["state"] == "finished", 120, "the run's end")
    finally:
        daemon.stop()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "state").rglob("*")}
    second = run.events("trainer_launched")[1]
    after = told(first)
    assert (after["facts"]["exit_class"], after["facts"]["followed_by"]) == ("killed", second["launch"])
    assert [each["event"] for each in after["history"]["events"]].count("trainer_exited") == 1
    resumed = second["resume_step"]
    for step, launch in ((resumed, first), (resumed + 1, second["launch"])):
        facts = told(step)["facts"]
        assert (facts["state"], facts["launch"], facts["timeline"]) == ("committed", launch, 0)
        assert facts["loss"] == next(
            row["loss"] for row in run.rows() if row["step"] == step and "loss" in row
        )
    key = next(iter(run.data.sources().values())).key or ""
    assert told(key[:8])["facts"]["path"] == "0.parquet"
    assert told("train_supervisor")["next"] == "all is well, run main is finished"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "state").rglob("*")} == before
