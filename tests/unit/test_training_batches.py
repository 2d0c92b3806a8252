"""Global batches: every window once, across entries, never short, from a plan that grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.plan.positions import START, Position
from stoker.plan.windows import Windows
from stoker.store.errors import DataError
from stoker.training.data.batches import Batch, Batches
from support.trainer_run import SEQ_LEN, VOCAB, TrainerRun


def batches(run: TrainerRun, position: Position = START, skips: tuple = (), size: int = 8) -> Batches:
    return Batches(
        run.layout.plan,
        run.shards,
        position=position,
        size=size,
        vocab_size=VOCAB,
        skips=skips,
    )


def drain(source: Batches) -> list[Batch]:
    taken = []
    while (batch := source.next()) is not None:
        taken.append(batch)
    return taken


def only(batch: Batch) -> Windows:
    """The windows of a batch that all have one length."""
    (windows,) = batch.groups
    return windows


def windows_of(run: TrainerRun) -> set[bytes]:
    """Every window of every shard set, read without the reader."""
    windows = set()
    for file in run.shards.glob("*/train-00000.bin"):
        tokens = np.fromfile(file, dtype="<u2").astype(np.int64)
        count = (len(tokens) - 1) // SEQ_LEN
        windows |= {tokens[n * SEQ_LEN : n * SEQ_LEN + SEQ_LEN + 1].tobytes() for n in range(count)}
    return windows


def test_full_batches_hold_every_window_of_the_plan_once(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(30, 50)
    source = batches(run)
    taken = drain(source)
    rows = [row.tobytes() for batch in taken for row in only(batch)]
    assert [only(batch).shape for batch in taken] == [(8, SEQ_LEN + 1)] * 10
    assert len(rows) == len(set(rows)) == 80 and set(rows) == windows_of(run)
    assert taken[3].position == Position(1, 2)


def test_a_batch_taken_up_again_at_a_position_is_the_same_batch(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(30, 50)
    first = drain(batches(run))
    resumed = drain(batches(run, position=first[3].position))
    assert all(
        np.array_equal(only(mine), only(theirs)) for mine, theirs in zip(resumed, first[4:], strict=True)
    )


def test_too_few_windows_are_a_wait_until_the_plan_has_grown(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    source = batches(run)
    assert source.next() is None and not source.exhausted
    run.plan(5)
    source.reread()
    assert source.next() is None and source.remainder == 5
    run.plan(4)
    source.reread()
    batch = source.next()
    assert batch is not None and len(only(batch)) == 8 and batch.position == Position(1, 3)


def test_an_ended_plan_is_exhausted_when_less_than_a_batch_is_left(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(12, end=True)
    source = batches(run)
    assert not source.exhausted
    assert source.next() is not None
    assert source.next() is None and source.exhausted and source.remainder == 4


def test_skipped_windows_are_passed_over(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(24)
    whole = [row.tobytes() for batch in drain(batches(run)) for row in only(batch)]
    skipping = drain(batches(run, skips=((Position(0, 4), Position(0, 12)),)))
    rows = [row.tobytes() for batch in skipping for row in only(batch)]
    assert rows == whole[:4] + whole[12:]


def test_a_batch_over_an_entry_with_another_length_holds_both_and_counts_their_tokens(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(10)
    run.plan(10, seq_len=SEQ_LEN // 2)
    first, second = drain(batches(run))
    assert only(first).shape == (8, SEQ_LEN + 1)
    assert [group.shape for group in second.groups] == [(2, SEQ_LEN + 1), (6, SEQ_LEN // 2 + 1)]
    assert (first.tokens, second.tokens) == (8 * SEQ_LEN, 2 * SEQ_LEN + 6 * SEQ_LEN // 2)
    assert batches(run).longest == SEQ_LEN


def test_a_plan_that_was_rewritten_is_refused(tmp_path: Path) -> None:
    run = TrainerRun(tmp_path)
    run.plan(24)
    source = batches(run)
    run.layout.plan.unlink()
    run.plan(20, 20)
    with pytest.raises(DataError, match="continuation"):
        source.reread()
