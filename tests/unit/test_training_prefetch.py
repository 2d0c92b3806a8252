"""Batches read ahead in a thread: the same ones in the same order, and nothing lost at the plan's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.plan.positions import START, Position
from stoker.store.errors import DataError
from stoker.training.data.batches import Batches
from stoker.training.data.prefetch import Prefetcher
from support.trainer_run import SEQ_LEN, VOCAB, TrainerRun
from support.waiting import wait_until

SIZE = 8
Open = Callable[[], tuple[Batches, Prefetcher]]


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    return TrainerRun(tmp_path)


@pytest.fixture
def opened(run: TrainerRun) -> Iterator[Open]:
    prefetchers: list[Prefetcher] = []

    def begin() -> tuple[Batches, Prefetcher]:
        source = batches(run)
        prefetchers.append(Prefetcher(source, torch.device("cpu")))
        return source, prefetchers[-1]

    yield begin
    for prefetcher in prefetchers:
        prefetcher.close()


def batches(run: TrainerRun) -> Batches:
    return Batches(run.layout.plan, run.shards, position=START, size=SIZE, vocab_size=VOCAB)


def test_batches_come_in_the_same_order_with_the_same_positions(run: TrainerRun, opened: Open) -> None:
    run.plan(30)
    run.plan(30, seq_len=SEQ_LEN // 2)
    plain, (_, prefetcher) = batches(run), opened()
    while (wanted := plain.next()) is not None:
        found = prefetcher.next()
        assert found is not None
        assert (found.position, found.tokens) == (wanted.position, wanted.tokens)
        for ours, theirs in zip(found.groups, wanted.groups, strict=True):
            assert ours.dtype == torch.int64 and np.array_equal(ours.numpy(), theirs)
    assert prefetcher.next() is None


def test_the_next_two_are_read_while_one_is_trained_on(run: TrainerRun, opened: Open) -> None:
    run.plan(80)
    source, prefetcher = opened()
    prefetcher.next()
    wait_until(lambda: source.position == Position(0, 3 * SIZE), what="two batches ahead")


def test_closing_puts_back_what_was_not_trained_on(run: TrainerRun, opened: Open) -> None:
    run.plan(80)
    source, prefetcher = opened()
    prefetcher.next()
    prefetcher.close()
    assert (source.position, source.remainder) == (Position(0, SIZE), 72)


def test_a_plan_that_grew_after_the_thread_had_looked_is_no_wait(run: TrainerRun, opened: Open) -> None:
    run.plan(SIZE + 5)
    source, prefetcher = opened()
    assert prefetcher.next() is not None
    assert prefetcher.next() is None and not source.exhausted
    run.plan(SIZE)
    batch = prefetcher.next()
    assert batch is not None and batch.position == Position(1, 3)
    run.plan(5, end=True)
    assert prefetcher.next() is not None
    assert prefetcher.next() is None and source.exhausted and source.remainder == 2


def test_a_wrong_window_is_an_error_when_its_turn_comes(run: TrainerRun, opened: Open) -> None:
    run.plan(2 * SIZE, SIZE)
    _, prefetcher = opened()
    (file,) = run.shards.glob(f"{_key(run, 1)}/train-00000.bin")
    file.write_bytes(np.full(file.stat().st_size // 2, VOCAB, "<u2").tobytes())
    assert prefetcher.next() is not None and prefetcher.next() is not None
    with pytest.raises(DataError, match="beyond the vocabulary"):
        prefetcher.next()


@pytest.mark.gpu
def test_for_a_card_batches_are_pinned(run: TrainerRun) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    run.plan(30)
    prefetcher = Prefetcher(batches(run), torch.device("cuda"))
    batch = prefetcher.next()
    prefetcher.close()
    assert batch is not None and all(group.is_pinned() for group in batch.groups)


def _key(run: TrainerRun, entry: int) -> str:
    return batches(run).plan.segments[entry].sets[0][0][:16]
