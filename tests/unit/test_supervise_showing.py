"""What the supervisor shows: waits for data, speed and time left, the newest checkpoint."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.cli.pipeline.status import report_lines
from stoker.kit.context import DaemonContext
from stoker.kit.loop import Waiter
from stoker.kit.metrics import Metrics
from stoker.kit.process import ProcessId
from stoker.observe.verdict import Facts
from stoker.plan.growth import ENOUGH
from stoker.plan.timelines import Timeline
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView, heard
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.progress import SOON_S, DataWait, WindowRate, waiting_words
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stoker.supervise.trainer_kind import BUILT_IN, EXTERNAL
from stokerd.supervision.run import Run, load_run
from stokerd.supervision.snapshot import run_progress, snapshot, status_text
from stokerd.supervision.status import FIGURES, Status, read_audit
from support.config_files import train_of
from support.pipelines import make_pipeline
from support.plan_data import plan_of, segment

BODY = {"step": 40, "tokens": 4000, "loss": 3.25, "val_loss": 3.5, "position": [0, 160]}
PROVEN = Checkpoint(Path("step-000000040"), 40, BODY)
SEALED = Checkpoint(Path("step-000000047"), 47, {**BODY, "step": 47, "loss": 3.0})
LAUNCH = Launch("l1", 0, None, 0, Path("x.sock"))


def trainer(**said: Any) -> Trainer:
    view = TrainerView("l1", 0.0, 0.0, **said)
    return Trainer(LAUNCH, ProcessId(5, 50), view, Stillness(0.0, 0.0), 0.0)


TRAINING = trainer(phase="train", step=50, loss=2.5, tokens_per_s=900.0, mfu=0.4)


def shown(**changes: Any) -> dict[str, Any]:
    """A run at step 50 of 100, of which 2 windows a second are trained in batches of 4."""
    planner = SimpleNamespace(plan=plan_of(segment(0, 100)), why="")
    accounts = SimpleNamespace(
        planner=planner,
        last_step=changes.get("steps", 100),
        headway=SimpleNamespace(windows_per_s=changes.get("windows_per_s", 2.0)),
        wait=changes.get("wait", DataWait(60.0)),
        timeline=0,
        forked="",
        evaluated=lambda *_: changes.get("evaluated"),
    )
    checkpoints = SimpleNamespace(
        newest=changes.get("checkpoint", PROVEN), sealed=changes.get("sealed", PROVEN)
    )
    train = train_of(global_batch=4, **changes.get("train", {}))
    context = SimpleNamespace(pipeline=SimpleNamespace(train=train))
    parts = cast(Any, (SimpleNamespace(record=None), checkpoints, None, accounts, *[None] * 3))
    state = RunState(Phase.TRAINING, 0.0, trainer=changes.get("live", TRAINING))
    run = Run(cast(Any, context), state, *parts, kind=changes.get("kind", BUILT_IN))
    run.counted.unsaved = changes.get("unsaved", run.counted.unsaved)
    if "refused" in changes:
        run.counted.saves_refused, run.counted.save_refused = 1, changes["refused"]
    return snapshot(run, changes.get("doing", "training"), is_ending=changes.get("ending", False))


def test_a_restarted_supervisor_shows_the_rollbacks_at_once(tmp_path: Path) -> None:
    """A counter that falls to 0 and rises when a checkpoint is proven would tell of new rollbacks."""
    pipeline = make_pipeline(tmp_path).pipeline
    pipeline.layout.create()
    layout = pipeline.layout.run(pipeline.train.run)
    layout.create()
    with contextlib.closing(ChainedLog(layout.timelines)) as log:
        log.append(Timeline(1, 0, 20, (), "as asked").body())
    context = DaemonContext(TRAIN_SUPERVISOR, pipeline, Waiter(), once=True)
    Status(load_run(context))
    page = context.metrics.text().decode()
    assert "stoker_train_rollbacks_total 1.0\n" in page and "stoker_train_timeline 1.0\n" in page


def test_a_runtime_directory_that_another_user_took_in_mid_run_ends_no_daemon(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = DaemonContext(TRAIN_SUPERVISOR, make_pipeline(tmp_path).pipeline, Waiter(), once=True)
    root = context.runtime.root
    shutil.rmtree(root)
    root.mkdir()
    root.chmod(0o777)
    try:
        context.beat({}, "training")
        assert "status_unwritable" in (said := capfd.readouterr().err) and str(root) in said
    finally:
        shutil.rmtree(root)


def test_the_record_of_an_audit_is_read_only_when_it_is_new(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    assert read_audit(path, {}) == {}
    write_record(path, {"v": 1, "findings": ["a set is missing"]})
    found = read_audit(path, {})
    assert found == {"findings": 1, "at": path.stat().st_mtime}
    assert read_audit(path, found) is found


def waiting() -> DataWait:
    wait = DataWait(60.0)
    wait.note("waiting for data: b.parquet", 0.0)
    return wait


@pytest.mark.parametrize(
    ("changes", "speed", "left_s"),
    [
        ({}, 900.0, 100.0),
        ({"windows_per_s": None}, 900.0, None),
        ({"wait": waiting()}, None, None),
        ({"ending": True}, None, None),
        ({"live": None}, None, None),
        ({"live": trainer(phase="load")}, None, None),
    ],
)
def test_speed_and_time_left_are_told_of_a_trainer_that_trains(
    changes: dict[str, Any], speed: float | None, left_s: float | None
) -> None:
    told = shown(**changes)
    assert (told["tokens_per_s"], told["eta_s"]) == (speed, left_s)
    assert told["mfu"] == (0.4 if speed else None)


def test_the_hourly_event_has_step_loss_speed_and_time_left_and_is_for_a_trainer_that_trains() -> None:
    assert run_progress(shown()) == {
        "step": 50,
        "steps": 100,
        "loss": 2.5,
        "val_loss": 3.5,
        "val_step": None,
        "tokens_per_s": 900,
        "eta_s": 100,
    }
    assert run_progress(shown(windows_per_s=None))["eta_s"] is None
    assert run_progress(shown(wait=waiting())) == run_progress(shown(live=None)) == {}


def test_a_wait_is_told_with_what_is_waited_for_and_since_when() -> None:
    wait = waiting()
    told = shown(wait=wait, doing="waiting for data: b.parquet")
    assert (told["run_state"], told["waiting_for"]) == ("waiting", "b.parquet")
    assert status_text(told) == (
        f"waiting for data: b.parquet, since {wait.since}: step 50 of 100, loss 2.5000, checkpoint 40"
    )


def test_without_a_trainer_the_newest_sealed_checkpoint_tells_the_step_proven_or_not() -> None:
    told = shown(live=None, sealed=SEALED)
    assert (told["step"], told["loss"]) == (47, 3.0)
    assert told["checkpoint"] == {"name": "step-000000047", "step": 47, "proven": False}
    told = shown(live=None, sealed=None)
    assert told["checkpoint"] == {"name": "step-000000040", "step": 40, "proven": True}
    assert shown(live=None, sealed=None, checkpoint=None)["checkpoint"] is None


@pytest.mark.parametrize("live", [None, trainer(step=60, val_loss=3.5), TRAINING])
def test_the_newest_evaluation_is_the_logs_whatever_checkpoint_and_trainer_say(live: Trainer | None) -> None:
    told = shown(live=live, evaluated=(40, 3.25))
    assert (told["val_loss"], told["val_step"]) == (3.25, 40)
    metrics = Metrics(TRAIN_SUPERVISOR)
    metrics.show(FIGURES, told)
    lines = metrics.text().decode().splitlines()
    assert {"stoker_train_val_loss 3.25", "stoker_train_val_step 40.0"} <= set(lines)


def test_a_checkpoint_that_failed_is_trouble_until_a_later_one_is_sealed() -> None:
    told = shown(unsaved=(0, 46, "no space left"))
    assert told["trouble"] == "the checkpoint at step 46 failed: no space left"
    assert status_text(told).endswith(f"checkpoint 40, {told['trouble']}")
    assert shown(unsaved=(0, 46, "no space left"), sealed=SEALED)["trouble"] is None
    assert shown(unsaved=(1, 46, "before a rollback"))["trouble"] is None
    assert shown()["trouble"] is None


STOPPED = {"running": False, "state": "stopped", "pid": None, "since": None, "metrics": None}


def test_a_save_that_was_not_taken_is_trouble_and_a_step_that_nobody_knows_is_none() -> None:
    told = shown(refused="out/last: it is an empty directory")["trouble"]
    assert told.startswith("the newest save is not sealed: out/last: it is an empty directory; ")
    unknown = replace(PROVEN, body={**PROVEN.body, "external": {"path": "out/last", "step": None}})
    told = shown(live=None, checkpoint=unknown, sealed=unknown)
    assert (told["step"], told["checkpoint"]["step"]) == (None, None)
    told = shown(checkpoint=unknown, sealed=unknown)
    assert "checkpoint of an unknown step" in status_text(told)
    lines = report_lines(Facts("p", "FILE", {TRAIN_SUPERVISOR: {**STOPPED, "body": told}}))
    assert any(line.endswith(", of a step that nobody knows") for line in lines)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("waiting for a.parquet", "waiting for data: a.parquet"),
        ("waiting for more shard sets", "waiting for data: more shard sets"),
        ("the listing is empty", "waiting for data: the listing is empty"),
        ("", "waiting for data: shard sets to be proven"),
        (ENOUGH, "waiting for data: shard sets to be proven"),
    ],
)
def test_the_plans_reason_becomes_what_is_waited_for(why: str, words: str) -> None:
    assert waiting_words(why) == words


def test_a_wait_longer_than_hold_is_told_once_whatever_it_is_for() -> None:
    wait = DataWait(60.0)
    words = ["a", "a", "b", "b", "", "b", "b"]
    assert [wait.note(what, 40.0 * turn) for turn, what in enumerate(words)] == [
        *(False, False, True, False),
        *(False, False, False),
    ]
    assert wait.note("b", 260.0) and wait.lasted_s(261.0) == 61.0
    wait.note("", 262.0)
    assert (wait.what, wait.since, wait.lasted_s(300.0)) == ("", "", 0.0)


def test_a_checkpoint_in_the_middle_does_not_end_a_wait_and_a_batch_does() -> None:
    view = TrainerView("l1", 0.0, 0.0)
    seen = []
    for phase in ("train", "checkpoint", "wait-data", "checkpoint", "wait-data", None, "train", "eval"):
        view = heard(view, {"phase": phase} if phase else {}, 1.0)
        seen.append(view.waits)
    assert seen == [False, False, True, True, True, True, False, False]


def test_an_evaluation_in_the_window_moves_the_time_left_a_little() -> None:
    pace = WindowRate()
    windows, told = 0, []
    for second in range(600):
        windows += 0 if 300 <= second < 325 else 4  # a step a second, and an evaluation of 25
        pace.sampled(windows, float(second))
        told.append(pace.windows_per_s)
    assert told[59] is None, "the first seconds are no measure"
    known = [rate for rate in told if rate is not None]
    assert max(known) / min(known) < 1.1


def test_how_soon_data_is_needed_is_known_before_the_time_left_is() -> None:
    soon, later = WindowRate(least_s=SOON_S), WindowRate()
    for second in range(12):
        for pace in (soon, later):
            pace.sampled(4 * second, float(second))
    assert (soon.windows_per_s, later.windows_per_s) == (4.0, None)


def test_the_last_words_tell_the_seconds_of_steps_and_saves() -> None:
    def said(before: Trainer, now: float, text: str) -> Trainer:
        return before.after_words([f"LAUNCH=l1\n{text}".encode()], now)

    begun = said(trainer(), 10.0, "PHASE=train\nSTEP=5")
    assert (begun.steps_s, begun.saves_s) == ((), ())  # the time before the first step is no step's
    later = said(begun, 12.0, "PHASE=train\nSTEP=9")
    assert later.steps_s == (0.5,) * 4  # steps between two messages share the time
    saving = said(later, 13.0, "PHASE=checkpoint")
    saved = said(said(saving, 14.0, "PHASE=checkpoint"), 15.5, "PHASE=train\nSTEP=10")
    assert (saving.saves_s, saved.saves_s, saved.steps_s) == ((), (2.5,), ())


@pytest.mark.parametrize(
    ("age_s", "read_as", "says"),
    [
        (59.0, "", "loading the trainer"),
        (61.0, "", "running, no step recognised in its output: set train.external.step, or use the client"),
        (61.0, "tqdm", "loading the trainer"),
    ],
)
def test_a_trainer_whose_output_tells_no_step_is_not_said_to_be_loading_for_its_whole_run(
    age_s: float, read_as: str, says: str
) -> None:
    loading = trainer(phase="load", phase_at=time.monotonic() - age_s)
    external = replace(loading, launch=replace(LAUNCH, reads_output=True), read_as=read_as)
    assert status_text(shown(kind=EXTERNAL, live=external)).startswith(says)
    assert status_text(shown(live=loading)).startswith("loading the trainer")


def test_a_trainer_of_the_users_own_shows_no_plan_and_perhaps_no_last_step() -> None:
    told = shown(kind=EXTERNAL, steps=None, windows_per_s=None)
    assert {
        told[name] for name in ("steps", "eta_s", "plan_entries", "plan_windows", "plan_windows_ahead")
    } == {None}
    assert status_text(told).startswith("training: step 50, loss 2.5000")
