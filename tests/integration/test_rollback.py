"""Rollbacks with the real supervisor: by request while training, across kills, and by command."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
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

Command = Callable[..., tuple[int, str]]


def ask(run: TrainPipeline, to: int, skip: list[list[int]], timeline: int) -> str:
    args = {"to": to, "skip": skip, "reason": "test"}
    return file_request(run.data.pipeline.layout, TRAIN_SUPERVISOR, "rollback", args, {"timeline": timeline})


def outcome(run: TrainPipeline, request: str, timeout_s: float = 60.0) -> dict[str, Any]:
    layout = run.data.pipeline.layout
    return wait_until(lambda: read_outcome(layout, request), timeout_s, "the answer to the request")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def give(run: TrainPipeline, *words: str, verb: str = "rollback") -> tuple[int, str]:
        code = exit_code([*verb.split(), str(run.data.file), *words, "--json"])
        return code, capsys.readouterr().out

    return give


def history(run: TrainPipeline) -> list[dict[str, Any]]:
    """The training steps that count, by step."""
    forks = ancestry(read_timelines(run.run.timelines))
    rows = committed(run.rows(), forks, lambda row: (row["timeline"], row["step"], "loss" in row))
    return [row for row in rows if "loss" in row]


def test_a_rollback_survives_the_supervisors_death_and_one_to_the_beginning_at_rest_ends_the_same(
    shard_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    for name, value in halts_at(tmp_path / "halts", []).items():
        monkeypatch.setenv(name, value)
    run = make_training(
        shard_sets,
        tmp_path / "asked",
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
        wait_until(lambda: run.data.status(TRAIN_SUPERVISOR).get("at_rest"), 90.0, "the rest")
        check_asked(run)

        before, seen = (history(run), run.tensors()), [run.metrics()]
        (tmp_path / "halts" / "halt-load").touch()  # its metrics are read while it is at the beginning
        code, said = command(run, "0")
        assert code == 0, said
        (trainer,) = wait_until(run.trainers, what="the trainer")
        wait_halted(trainer.pid)
        seen.append(run.metrics())
        signal_process(trainer, signal.SIGCONT)
        wait_until(lambda: run.record().get("finished") and run.checkpoints()[-1:] == ["step-000000060"], 60)
        seen.append(run.metrics())
    finally:
        for daemon in (first, second):
            if daemon is not None and daemon.process.poll() is None:
                daemon.stop()
    processed = [metrics["stoker_train_tokens_total",] for metrics in seen]
    assert processed == sorted(processed), "a counter never falls"
    assert processed[-1] - processed[0] == 60 * 4 * 64
    assert [metrics["stoker_train_history_tokens",] for metrics in seen] == [60 * 4 * 64, 0, 60 * 4 * 64]
    assert history(run) == [{**row, "timeline": 2} for row in before[0]], "what was skipped is so again"
    assert run.tensors() == before[1]
    assert audit_run(run.data.pipeline).findings == ()


def check_asked(run: TrainPipeline) -> None:
    """Twenty steps of the first timeline and forty of the next, which skipped windows."""
    rows = history(run)
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert [row["timeline"] for row in rows] == [0] * 20 + [1] * 40
    assert rows[-1]["tokens"] == 60 * 4 * 64
    audit = audit_run(run.data.pipeline)
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.skipped) == (60 * 4, 24)
    abandoned = sorted(path.name for path in (run.run.abandoned / "t0").iterdir())
    assert abandoned and "step-000000020" not in abandoned


def test_a_set_whose_source_is_gone_too_fails_the_run_until_an_operator_gives_it_up(
    finished: TrainPipeline, tmp_path: Path, command: Command
) -> None:
    run = make_training(finished.data.home, tmp_path / "lost", train__steps=66, plan__epochs=1)
    entry = read_plan(run.run.plan).segments[0]
    key = entry.sets[0][0]
    assert "is not lost" in command(run, key[:16], verb="skip-set")[1]
    code, said = command(run, "35")
    assert (code, "possible are" in json.loads(said)["refused"]) == (65, True)
    code, said = command(run, verb="pause")
    assert (code, "the run is finished" in said) == (65, True), said
    (source,) = [one for one in run.data.sources().values() if one.key == key]
    shutil.rmtree(run.data.pipeline.hot_layout.shard_set("prose", key))
    gone = replace(source, state="quarantined", key=None, reason="page_corrupt")
    write_source(run.data.pipeline.layout, gone)
    ended = run.once()
    assert ended.returncode == 65 and f"skip-set FILE {key[:16]}" in ended.stderr
    assert (run.record()["state"], "page_corrupt" in run.record()["reason"]) == ("failed", True)
    code, filed = command(run, key[:16], verb="skip-set")  # a supervisor that is down takes it up
    assert code == 0, filed
    assert run.once().returncode == 0
    given_up = outcome(run, json.loads(filed)["filed"])
    assert given_up["skipped_windows"] == entry.windows - 60 * 4
    assert [row["step"] for row in history(run)] == list(range(1, 67))
    assert {row["position"][0] for row in history(run)[60:]} <= {
        segment.n for segment in read_plan(run.run.plan).segments[1:]
    }
    assert audit_run(run.data.pipeline).findings == ()


@pytest.mark.parametrize("words", [("rollback", "3"), ("data skip-set", "826ae25e2e7c26a6")])
def test_a_run_that_has_not_begun_is_said_to_be_none(
    tmp_path: Path, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_pipeline(tmp_path)
    verb, what = words
    assert exit_code([*verb.split(), str(data.file), what]) == 64
    assert "no run of this name has begun" in capsys.readouterr().err
    assert not data.pipeline.state.exists()
