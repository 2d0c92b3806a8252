"""What changes under a run: its batch and its sequence length, the data it reads, its files, its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.plan.consumption import read_holdings
from stoker.plan.log import Segment, read_plan
from stoker.store.layout import STAGE_SHARD
from stoker.supervise.audit import audit_run
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

BATCH, SEQ_LEN = 30, 32  # after 60 steps of 4 windows of 64


def test_another_batch_and_from_an_entry_on_another_length_keep_the_books_true(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    run = make_training(
        finished.data.home,
        tmp_path / "wider",
        train__steps=76,
        train__global_batch=BATCH,
        train__seq_len=SEQ_LEN,
    )
    assert run.once().returncode == 0
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


def test_a_set_that_rots_while_it_is_read_is_restored_and_the_run_goes_on(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    run = make_training(finished.data.home, tmp_path / "rotten", train__steps=66)
    key = read_plan(run.run.plan).segments[0].sets[0][0]
    file = run.data.pipeline.hot_layout.shard_set("prose", key) / "train-00000.bin"
    whole = file.read_bytes()
    file.write_bytes(b"\xff" * len(whole))  # ids beyond any vocabulary, and the size is right
    supervisor = run.start()
    loop = None
    try:
        damaged = wait_until(lambda: run.events("shard_set_damaged"), 60, "the finding")[0]
        assert damaged["key"] == key and run.events("trainer_exited")[-1]["exit_class"] == "bad_data"
        wait_until(lambda: "shard set" in run.data.status("train_supervisor").get("doing", ""), 10, "the wait")
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


def test_another_run_over_the_same_data_has_a_plan_of_its_own(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    first = make_training(finished.data.home, tmp_path / "two")
    before = first.run.plan.read_bytes()
    second = make_training(tmp_path / "two", tmp_path / "two", train__run="second", train__steps=10)
    assert second.once().returncode == 0
    layout = second.data.pipeline.layout
    ours, theirs = read_plan(first.run.plan).segments[0], read_plan(layout.run("second").plan).segments[0]
    assert (ours.sets, ours.key, first.run.plan.read_bytes()) == (theirs.sets, theirs.key, before)
    assert ours.run_id != theirs.run_id
    holdings = {run.run: run.finished for run in read_holdings(layout)}
    assert holdings == {"main": True, "second": True}
    assert audit_run(second.data.pipeline).findings == ()
    # The plan of one is no plan for the other.
    layout.run("second").plan.write_bytes(before)
    ended = second.once()
    assert ended.returncode == 65 and "another run" in ended.stderr


Edit = Callable[[list[bytes]], list[bytes]]
EDITS: dict[str, tuple[Edit, int, str]] = {
    "edited": (lambda lines: [lines[0].replace(b'"epoch":0', b'"epoch":1'), *lines[1:]], 65, "lines were changed or lost"),
    "reordered": (lambda lines: lines[::-1], 65, "lines were changed or lost"),
    "first removed": (lambda lines: lines[1:], 65, "lines were changed or lost"),
    "last removed": (lambda lines: lines[:-1], 0, "plan_restored"),
    "gone": (lambda lines: [], 0, "plan_restored"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_plan_that_was_changed_is_refused_and_one_that_lost_its_end_is_healed(
    two_entries: TrainPipeline, tmp_path: Path, name: str
) -> None:
    edit, code, said = EDITS[name]
    run = make_training(two_entries.data.home, tmp_path / "edited", **TWO_ENTRIES)
    whole = run.run.plan.read_bytes()
    run.run.plan.write_bytes(b"".join(edit(whole.splitlines(keepends=True))))
    ended = run.once()
    assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
    if code == 0:
        assert run.run.plan.read_bytes() == whole
        assert audit_run(run.data.pipeline).findings == ()
    else:
        assert run.run.plan.read_bytes() != whole  # nothing was guessed at
        shutil.copy(run.run.checkpoints / run.checkpoints()[-1] / "plan.jsonl", run.run.plan)
        assert run.once().returncode == 0


TWO_ENTRIES = {"train__steps": 8, "train__global_batch": 100, "train__seq_len": 64}


@pytest.fixture(scope="module")
def two_entries(shard_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPipeline:
    """A finished run that has trained on windows of two entries."""
    run = make_training(shard_sets, tmp_path_factory.mktemp("two-entries"), **TWO_ENTRIES)
    assert run.once().returncode == 0
    assert sum(isinstance(entry, Segment) for entry in read_plan(run.run.plan).entries) >= 2
    return run
