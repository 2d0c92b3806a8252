"""When --once is over, and what its last line says: without a process."""

from __future__ import annotations

import pytest

from stoker.corpus.records.receipts import Listing
from stoker.corpus.schedule.outcome import Kind, Outcome
from stoker.store.errors import UnavailableError
from stokerd.sharding import loop
from stokerd.sharding.activities.base import TRIES_ONCE
from stokerd.sharding.work import BuildWork
from support.shard_state import MakeShard, Shard
from unit.test_shard_build_ends import EASY


@pytest.fixture
def shard(make_shard: MakeShard) -> Shard:
    """A built file and one that is about to be."""
    shard = make_shard(once=True)
    shard.pin()
    for path, state in (("a", "building"), ("b", "released")):
        shard.source(path, state)  # type: ignore[arg-type]
        shard.receipt(path)
    shard.dataset.pinning.listing = Listing("prose", (("a", 1 << 20), ("b", 1 << 20)), True, "")
    shard.look()
    return shard


def is_over(shard: Shard) -> bool:
    shard.dataset.situation = shard.situation()
    return loop.is_over(shard.state)


def fail(shard: Shard, kind: Kind, times: int) -> None:
    for _ in range(times):
        shard.job("build", work=BuildWork(attempt=EASY))
        assert not is_over(shard), "it is at work"
        shard.end("a", Outcome(kind, "why"))
        shard.measure(free=900 << 20)


def test_it_ends_although_every_worker_on_one_file_is_killed(shard: Shard) -> None:
    fail(shard, "killed", TRIES_ONCE - 1)
    assert not is_over(shard)
    fail(shard, "killed", 1)
    assert is_over(shard)
    assert shard.on_disk().deaths == (), "nobody is to blame"
    assert loop.summarize(shard.state) == 0


def test_what_is_to_be_removed_from_a_disk_is_waited_for(shard: Shard) -> None:
    shard.source("a", "released")
    assert is_over(shard)
    shard.state.hot.discard("/somewhere")
    assert not is_over(shard)


def test_a_worker_that_the_kernel_holds_ends_it_with_the_word_to_look_at_the_mount(shard: Shard) -> None:
    job = shard.job("build", work=BuildWork(attempt=EASY))
    job.abandoned = True
    with pytest.raises(UnavailableError, match="build a: hangs in the kernel"):
        loop.summarize(shard.state)
