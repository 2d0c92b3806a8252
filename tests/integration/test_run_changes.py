"""What changes under a run: its batch and its sequence length, the data it reads, its plan."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.plan.log import read_plan
from stoker.plan.timelines import read_timelines
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_record, write_record
from stoker.supervise.audit.audit import audit_run
from stoker.supervise.run.launch_record import read_launches
from support.once import made_once
from support.pipelines import opened
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

BATCH, SEQ_LEN = 30, 32  # after 60 steps of 4 windows of 64
CHANGED: dict[str, Any] = {"train__steps": 76, "train__global_batch": BATCH, "train__seq_len": SEQ_LEN}
CHANGED |= {"train__ema": {"decay": 0.5}}


@pytest.fixture(scope="module")
def changed(finished: TrainPipeline, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A finished run that went on with another batch and another length, over two entries of its plan."""

    def train(home: Path) -> None:
        assert make_training(finished.data.home, home, **CHANGED).once().returncode == 0

    return TrainPipeline(opened(made_once(tmp_path_factory, "changed", train)))


def test_another_batch_and_from_an_entry_on_another_length_keep_the_books_true(
    changed: TrainPipeline,
) -> None:
    run = changed
    first, second = read_plan(run.run.plan).segments[:2]
    assert (first.seq_len, second.seq_len) == (64, SEQ_LEN)
    rows = {row["step"]: row for row in run.rows() if "loss" in row}
    assert sorted(rows) == list(range(1, 77))
    assert rows[61]["tokens"] - rows[60]["tokens"] == BATCH * 64
    across = 60 + (first.windows - 240) // BATCH + 1  # the step that reaches over into the second entry
    left = (first.windows - 240) % BATCH
    assert rows[across]["tokens"] - rows[across - 1]["tokens"] == left * 64 + (BATCH - left) * SEQ_LEN
    assert rows[76]["tokens"] - rows[75]["tokens"] == BATCH * SEQ_LEN
    assert rows[76]["position"][0] == second.n
    audit = audit_run(run.data.pipeline)
    assert audit.findings == ()
    assert audit.plan.applied == 240 + 16 * BATCH


def test_an_average_of_weights_that_is_switched_on_is_an_event_and_in_the_log_of_launches(
    changed: TrainPipeline,
) -> None:
    ema = {"decay": 0.5, "every": 1, "from_step": 2000}  # the end of the warm-up
    (event,) = changed.events("ema_changed")
    told = {name: event[name] for name in ("step", "change", *ema)}
    assert told == {"step": 60, "change": "begun", **ema} and read_record(changed.run.launch)["ema"] == ema
    launches, _ = read_launches(changed.run.launches)
    assert "ema" not in launches[0].settings and launches[-1].settings["ema"] == ema


def without_gains(home: Path, template: Path, steps: int, patience: int | None) -> TrainPipeline:
    """A run whose decay begins after three quarters, with few checkpoints besides the one there."""
    (home / "warm").mkdir(parents=True, exist_ok=True)
    schedule = {"name": "wsd", "warmup_steps": 2, "decay": 0.25}
    seals = {"every": None, "every_steps": 25, "keep_last": 1, "busy": "skip"}
    return make_training(
        template,
        home,
        warm=str(home / "warm"),
        train__steps=steps,
        train__schedule=schedule,
        train__checkpoint=seals,
        train__evaluate={"every_steps": 5, "tokens": 512, "patience": patience},
        train__optimizer={"lr": 1e-30},  # a gain of 0.0 at each evaluation
    )


def test_a_run_without_gains_ends_early_goes_on_with_more_patience_and_a_longer_horizon_begins_at_its_decay(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = without_gains(tmp_path / "wsd", shard_sets, 20, 3)
    assert run.once().returncode == 0
    (told,) = run.events("stopped_early")
    assert (told["step"], told["evaluations"], told["best_step"]) == (15, 3, 0)
    record = run.record()
    assert (record["state"], record["finished"], record["launches"]) == ("finished", "early_stop", 1)
    assert run.checkpoints()[-1] == "step-000000015" and run.last_step() == 15
    assert audit_run(run.data.pipeline).findings == ()

    assert without_gains(tmp_path / "wsd", shard_sets, 20, 9).once().returncode == 0
    assert run.record()["finished"] == "steps" and run.last_step() == 20
    kept = [run.run.checkpoints / f"step-0000000{step}" for step in (15, 20, 30)]
    assert set(run.checkpoints()) >= {kept[0].name, kept[1].name} and run.events("horizon_longer") == []

    shutil.rmtree(kept[0])  # the mirror has kept it too
    run = without_gains(tmp_path / "wsd", shard_sets, 40, None)
    assert run.once().returncode == 0
    (event,) = run.events("horizon_longer")
    assert (event["step"], event["left"], event["steps"]) == (15, 20, 40)
    (fork,) = read_timelines(run.run.timelines).forks
    assert (fork.from_step, fork.skip, fork.reason) == (15, (), "longer horizon: 40 steps")
    steps = {(row["timeline"], row["step"]) for row in run.rows() if "loss" in row}
    assert steps == {(0, step) for step in range(1, 21)} | {(1, step) for step in range(16, 41)}
    assert audit_run(run.data.pipeline).findings == ()
    assert kept[0].exists() and kept[2].exists()
    assert [event["step"] for event in run.events("checkpoint_fetched")] == [15]
    assert run.data.status(TRAIN_SUPERVISOR)["timeline_reason"] == fork.reason


def test_a_set_that_rots_while_it_is_read_is_restored_and_the_run_goes_on(
    shard_sets: Path, finished: TrainPipeline, tmp_path: Path
) -> None:
    of_both = {"dataset__source__path": str(shard_sets / "source"), "train__steps": 66}
    run = make_training(finished.data.home, tmp_path / "rotten", **of_both)
    key = read_plan(run.run.plan).segments[0].sets[0][0]
    file = run.data.pipeline.hot_layout.shard_set("prose", key) / "train-00000.bin"
    whole = file.read_bytes()
    file.write_bytes(b"\xff" * len(whole))  # ids beyond any vocabulary, and the size is right
    supervisor = run.start()
    loop = None
    try:
        damaged = wait_until(lambda: run.events("shard_set_damaged"), 60, "the finding")[0]
        assert damaged["key"] == key and run.events("trainer_exited")[-1]["exit_class"] == "bad_data"
        status = run.data.status
        wait_until(lambda: "shard set" in status(TRAIN_SUPERVISOR).get("doing", ""), 60.0, "the wait")
        assert run.record()["state"] == "running"
        loop = run.data.start(STAGE_SHARD)
        wait_until(lambda: run.record().get("finished"), 90, "the end of the run")
    finally:
        for daemon in (supervisor, loop):
            if daemon is not None:
                daemon.stop()
    assert file.read_bytes() == whole
    assert run.events("shard_set_restored")[0]["key"] == key
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, 67))


def test_a_plan_that_was_changed_is_refused_and_left_as_it_is_and_one_that_is_gone_comes_from_a_checkpoint(
    changed: TrainPipeline, tmp_path: Path
) -> None:
    run = make_training(changed.data.home, tmp_path / "edited", **CHANGED)
    whole = run.run.plan.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    edited = b"".join([first.replace(b'"tail_tokens":', b'"tail_tokens":1'), *rest])
    run.run.plan.write_bytes(edited)
    ended = run.once()
    assert ended.returncode == 65, ended.stderr
    for words in ("line 2", "lines were changed or lost", "copy in the newest checkpoint", "plan.jsonl"):
        assert words in ended.stderr
    assert run.run.plan.read_bytes() == edited  # nothing was guessed at

    run.run.plan.unlink()
    at_its_last_step = {"state": "paused", "finished": None, "paused": {"since": "", "by": "uid 0"}}
    write_record(run.run.record, run.record() | at_its_last_step)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert run.events("run_file_restored")[-1]["source"] == "step-000000076"
    assert run.run.plan.read_bytes() == whole
    record, launches = run.record(), len(run.events("trainer_launched"))
    assert (record["state"], record["paused"], launches) == ("finished", None, 2), "no trainer again"
    assert audit_run(run.data.pipeline).findings == ()


def test_a_new_run_waits_for_the_next_version_of_its_dataset_and_begins_with_it(
    shard_sets: Path, finished: TrainPipeline, tmp_path: Path
) -> None:
    changed: dict[str, Any] = {
        "dataset__source__path": str(shard_sets / "source"),
        "tokenizer__train": {"vocab_size": 350, "train_bytes": "60KB"},
        "train__steps": 10,
    }
    home = tmp_path / "version"
    run = make_training(finished.data.home, home, **changed)
    first, sets = run.data.pin(), run.data.sets()
    run = make_training(home, home, **changed, dataset__version=2, train__run="second")
    second = run.data.pipeline.layout.run("second")
    daemons = [run.start()]
    try:
        doing = wait_until(
            lambda: (
                (told := run.data.status(TRAIN_SUPERVISOR).get("doing", "")).startswith("waiting") and told
            ),
            what="the wait for version 2",
        )
        assert "pinned at version 1" in doing and not second.record.exists()
        daemons.append(run.data.start(STAGE_SHARD))
        wait_until(
            lambda: second.record.exists() and read_record(second.record)["finished"], what="the run's end"
        )
    finally:
        for daemon in daemons:
            assert daemon.stop() == 0
    record, pin = read_record(second.record), run.data.pin()
    assert pin.build_id != first.build_id and set(run.data.states().values()) == {"released"}
    assert run.data.sets().items() >= sets.items() and len(run.data.sets()) == 2 * len(sets)
    assert (record["dataset_version"], record["build_id"]) == (2, pin.build_id)
    assert pin.tokenizer.vocab_size == record["vocab_size"] == 350
