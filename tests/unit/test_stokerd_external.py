"""What the supervisor keeps of the checkpoints that an external trainer told of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.external.step_reports import Bounds
from stoker.kit.process import ProcessId
from stoker.store.errors import ConfigError
from stoker.store.record import read_record
from stoker.supervise.actions import Job
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import CheckpointNotice, TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.common.loop import NO_DATA
from stokerd.download import loop as download
from stokerd.sharding import loop as sharding
from stokerd.supervision.jobs import external
from stokerd.supervision.jobs.external import RESTORE, SAVES, WATCH
from stokerd.supervision.run import Run
from support.external_trainer import make_external


def external_of(tmp_path: Path, **keys: Any) -> Run:
    pipeline = make_external(tmp_path, "", **keys).data.pipeline
    pipeline.layout.run("main").create()
    context = SimpleNamespace(pipeline=pipeline, events=SimpleNamespace(record=None))
    return Run(cast(Any, context), RunState(Phase.TRAINING, 0.0), *cast(Any, [None] * 7))


def test_of_a_second_of_the_training_log_the_last_step_bounds_what_was_made_in_it(tmp_path: Path) -> None:
    run = external_of(tmp_path)
    rows = [(100, 9), (101, 10), (140, 10), (141, 11), (180, 11)]
    row = '{{"step":{},"timeline":0,"loss":1.0,"time":"2026-11-23T00:00:{:02}Z"}}\n'
    lines = (row.format(step, at) for step, at in rows)
    run.layout.metrics.parent.mkdir(exist_ok=True)
    run.layout.metrics.write_text("".join(lines))
    begun = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    bounds = [SAVES.of(run).heard.bounds(begun + at) for at in (9.5, 10.5, 11.5, 12.5)]
    assert bounds == [None, Bounds(100, 140), Bounds(140, 180), Bounds(180, None)]


@pytest.mark.parametrize(("key", "quiet_s"), [({}, (5.0, 15.0)), ({"quiet": "40s"}, (40.0, 40.0))])
def test_how_long_a_save_must_be_still_is_what_its_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: dict[str, str], quiet_s: tuple[float, float]
) -> None:
    monkeypatch.setattr(external, "_body", lambda *_: {})
    run = external_of(tmp_path, train__external={"checkpoints": "out/*", **key})
    run.store = cast(Any, SimpleNamespace(record=None, begun=None))
    run.accounts = cast(Any, SimpleNamespace(history=tuple))
    task = WATCH.task(run, Job("watch"))
    assert (task["quiet_s"], task["first_quiet_s"]) == quiet_s


@pytest.mark.parametrize("phase", ["train", "checkpoint"])
def test_that_a_trainer_says_that_it_saves_is_told_to_who_watches_its_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(external, "_body", lambda *_: {})
    run = external_of(tmp_path)
    run.store = cast(Any, SimpleNamespace(record=None, begun=None))
    run.accounts = cast(Any, SimpleNamespace(history=tuple))
    launch = Launch("l1", 0, None, 0, Path("x.sock"))
    trainer = Trainer(
        launch, ProcessId(5, 50), TrainerView("l1", 0.0, 0.0, phase=phase), Stillness(0.0, 0.0), 0.0
    )
    run.change(trainer=trainer)
    assert WATCH.task(run, Job("watch"))["is_saving"] is (phase == "checkpoint")
    other = {"train": "checkpoint", "checkpoint": "train"}[phase]
    run.change(trainer=replace(trainer, view=replace(trainer.view, phase=other)))
    assert list(WATCH.send(run)) == [{"is_saving": other == "checkpoint"}]
    assert list(WATCH.send(run)) == []


def test_a_word_is_kept_until_its_own_answer_comes_though_the_path_is_told_again(tmp_path: Path) -> None:
    run = external_of(tmp_path)

    def kept() -> tuple[Any, Any]:
        body = read_record(run.layout.told)
        return body["told"], body["at"]

    def tell(*told: CheckpointNotice) -> None:
        run.told += told
        list(WATCH.due(run))

    tell(CheckpointNotice("ckpt.pt", 15, 1.0))
    tell(CheckpointNotice("ckpt.pt", 20, 2.0), CheckpointNotice("best.pt", 18, 1.5))
    WATCH.on_message(run, Job("watch"), {"kind": "taken", "told": ["ckpt.pt", 15, 1.0]})
    assert kept() == ([["ckpt.pt", 20], ["best.pt", 18]], [2.0, 1.5])
    run.slices.clear()  # a restart
    WATCH.on_message(run, Job("watch"), {"kind": "taken", "told": ["ckpt.pt", 20, 2.0]})
    assert kept() == ([["best.pt", 18]], [1.5])


def test_what_lay_there_before_the_run_is_named_and_nothing_begins(tmp_path: Path) -> None:
    run = external_of(tmp_path, train__external={"checkpoints": "out/*"})
    run.context.events = cast(Any, SimpleNamespace(record=None, recall=lambda *_: None))
    with pytest.raises(ConfigError, match=r"out/step-30\.bin, which was there before this run began"):
        RESTORE.on_done(run, Job("restore"), {"status": "occupied", "path": "out/step-30.bin"})


@pytest.mark.parametrize("daemon", [download, sharding])
def test_a_daemon_of_data_has_nothing_to_do_for_a_trainer_that_brings_its_own(
    tmp_path: Path, daemon: Any
) -> None:
    said: list[str] = []
    pipeline = make_external(tmp_path, "").data.pipeline
    assert daemon.run(SimpleNamespace(pipeline=pipeline, ready=said.append)) == 0
    assert said == [NO_DATA]
