"""Rollbacks with the real supervisor: by request while training, across kills, and by command."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import write_source
from stoker.kit.process import signal_process
from stoker.plan.log import read_plan
from stoker.plan.timelines import ancestry, committed, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import file_request, read_outcome
from stoker.supervise.audit.audit import audit_run
from support.halting import halts_at, wait_halted
from support.pipelines import make_pipeline
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

STEPS = 80


def ask(run: TrainPipeline, to: int, skip: list[list[int]], timeline: int) -> str:
    args = {"to": to, "skip": skip, "reason": "test"}
    return file_request(run.data.pipeline.layout, TRAIN_SUPERVISOR, "rollback", args, {"timeline": timeline})


def outcome(run: TrainPipeline, request: str, timeout_s: float = 60.0) -> dict[str, Any]:
    layout = run.data.pipeline.layout
    return wait_until(lambda: read_outcome(layout, request), timeout_s, "the answer to the request")


def command(run: TrainPipeline, *words: str, verb: str = "rollback") -> subprocess.CompletedProcess[str]:
    code = "import sys; from stoker.cli.main import main; main(sys.argv[1:])"
    line = [sys.executable, "-P", "-c", code, verb, str(run.data.file), *words, "--json"]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def history(run: TrainPipeline) -> list[dict[str, Any]]:
    """The training steps that count, by step."""
    forks = ancestry(read_timelines(run.run.timelines))
    rows = committed(run.rows(), forks, lambda row: (row["timeline"], row["step"], "loss" in row))
    return [row for row in rows if "loss" in row]


def test_a_rollback_asked_for_while_training_survives_the_supervisors_death(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(
        shard_sets,
        tmp_path / "asked",
        train__steps=STEPS,
        train__checkpoint={"every_steps": 20, "keep_every": 20},
        quarantine={"keep_checkpoints": 99},
    )
    first = run.start()
    second = None
    try:
        trainer = run.wait_for_step(33)
        signal_process(trainer, signal.SIGSTOP)  # it stays in the middle while we ask
        asked = ask(run, 20, [[20, 25], [30, 31]], 0)
        wait_until(lambda: run.events("rollback_asked"), 60.0, "the supervisor's notice of it")
        first.kill()
        signal_process(trainer, signal.SIGCONT)
        second = run.start()
        assert outcome(run, asked) | {"moved": []} == {
            "timeline": 1,
            "left": 0,
            "from": 20,
            "skipped_windows": 24,
            "moved": [],
        }
        assert "on timeline 1, not on 0" in outcome(run, ask(run, 20, [], 0))["refused"]
        assert "possible are" in outcome(run, ask(run, 15, [], 1))["refused"]
        wait_until(lambda: run.record().get("state") == "finished", 90, "the end of the run")
    finally:
        for daemon in (first, second):
            if daemon is not None and daemon.process.poll() is None:
                daemon.stop()
    rows = history(run)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["timeline"] for row in rows] == [0] * 20 + [1] * (STEPS - 20)
    assert rows[-1]["tokens"] == STEPS * 4 * 64
    audit = audit_run(run.data.pipeline)
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.skipped) == (STEPS * 4, 24)
    abandoned = sorted(path.name for path in (run.run.abandoned / "t0").iterdir())
    assert abandoned and "step-000000020" not in abandoned

    # A supervisor that is down takes it up at its next start; what cannot be is refused at once.
    refused, filed = command(run, "35"), command(run, "40", "--skip", "50:51", "--reason", "spike")
    assert (refused.returncode, filed.returncode) == (65, 0), refused.stderr + filed.stderr
    assert "possible are" in json.loads(refused.stdout)["refused"]
    assert run.once().returncode == 0
    assert outcome(run, json.loads(filed.stdout)["filed"])["timeline"] == 2
    assert [row["timeline"] for row in history(run)] == [0] * 20 + [1] * 20 + [2] * (STEPS - 40)
    audit = audit_run(run.data.pipeline)
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.skipped) == (STEPS * 4, 28)


def test_a_finished_run_at_rest_goes_back_to_the_beginning_and_ends_the_same(
    finished: TrainPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in halts_at(tmp_path / "halts", ["load"]).items():
        monkeypatch.setenv(name, value)  # its metrics are read while it is at the beginning
    run = make_training(finished.data.home, tmp_path / "again")
    daemon = run.start()
    try:
        wait_until(lambda: run.data.status(TRAIN_SUPERVISOR).get("at_rest"), 60.0, "the rest")
        seen = [run.metrics()]
        told = command(run, "0")
        assert told.returncode == 0, told.stderr

        (trainer,) = wait_until(run.trainers, what="the trainer")
        wait_halted(trainer.pid)
        seen.append(run.metrics())
        signal_process(trainer, signal.SIGCONT)

        def is_over() -> bool:
            seen.append(run.metrics())
            return bool(run.record().get("finished")) and run.checkpoints()[-1:] == ["step-000000060"]

        wait_until(is_over, 60)
    finally:
        assert daemon.stop() == 0
    processed = [metrics["stoker_train_tokens_total",] for metrics in seen]
    assert processed == sorted(processed), "a counter never falls"
    assert (processed[0], processed[-1]) == (0, 60 * 4 * 64)
    position = [metrics["stoker_train_history_tokens",] for metrics in seen]
    assert position[0] == position[-1] == 60 * 4 * 64 and min(position) == 0
    same = [{**row, "timeline": 0} for row in history(run)]
    assert same == [row for row in finished.rows() if "loss" in row]
    assert run.tensors() == finished.tensors()
    assert audit_run(run.data.pipeline).findings == ()


def test_a_set_whose_source_is_gone_too_fails_the_run_until_an_operator_gives_it_up(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    run = make_training(finished.data.home, tmp_path / "lost", train__steps=66, plan__epochs=1)
    entry = read_plan(run.run.plan).segments[0]
    key = entry.sets[0][0]
    assert "is not lost" in command(run, key[:16], verb="skip-set").stdout
    over = command(run, verb="pause")
    assert (over.returncode, "the run is finished" in over.stdout) == (65, True), over.stdout
    (source,) = [one for one in run.data.sources().values() if one.key == key]
    shutil.rmtree(run.data.pipeline.hot_layout.shard_set("prose", key))
    gone = replace(source, state="quarantined", key=None, reason="page_corrupt")
    write_source(run.data.pipeline.layout, gone)
    ended = run.once()
    assert ended.returncode == 65 and f"skip-set FILE {key[:16]}" in ended.stderr
    assert (run.record()["state"], "page_corrupt" in run.record()["reason"]) == ("failed", True)
    filed = command(run, key[:16], verb="skip-set")
    assert filed.returncode == 0, filed.stdout + filed.stderr
    assert run.once().returncode == 0
    given_up = outcome(run, json.loads(filed.stdout)["filed"])
    assert given_up["skipped_windows"] == entry.windows - 60 * 4
    assert [row["step"] for row in history(run)] == list(range(1, 67))
    assert {row["position"][0] for row in history(run)[60:]} <= {
        segment.n for segment in read_plan(run.run.plan).segments[1:]
    }
    assert audit_run(run.data.pipeline).findings == ()


@pytest.mark.parametrize("words", [("rollback", "3"), ("skip-set", "826ae25e2e7c26a6")])
def test_a_run_that_has_not_begun_is_said_to_be_none(
    tmp_path: Path, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_pipeline(tmp_path)
    verb, what = words
    assert exit_code([verb, str(data.file), what]) == 64
    assert "no run of this name has begun" in capsys.readouterr().err
    assert not data.pipeline.state.exists()
