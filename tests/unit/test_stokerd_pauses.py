"""What waits for a full disk or the source folder: said once, over by itself, given up with --once."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest

from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.parent import Worker
from stoker.kit.workers.pool import Job
from stoker.observe.ledger import LOOK_S
from stoker.store.errors import StorageError, UnavailableError
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.pauses import ONCE_WAITS_S
from stokerd.sharding.work import SourceWork
from support.shard_state import MIB, Clock, MakeShard, ScriptedWorker, Shard

AWAY = Outcome("done", result={"status": "unavailable", "reason": "mount it"})
STAGED = Outcome("done", result={"status": "staged", "how": "copy", "xxh3": ""})


def find_full(shard: Shard, kind: str = "build", path: str = "0.parquet") -> None:
    """A worker found its disk full, and it was measured since."""
    place = "warm" if kind == "sync" else "hot"
    job: Job[Any] = Job(ACTIVITIES[kind], path, cast(Worker, ScriptedWorker()), SourceWork())
    shard.state.pauses.disk_full(job, "ENOSPC")
    for disk in shard.state.disks:
        disk.measure_soon()
    shard.measure(place, free=0)


def waits(shard: Shard, kind: str = "build") -> bool:
    return shard.state.pauses.until(kind) == math.inf


class TestFullDisk:
    def test_one_event_whatever_number_of_writers_and_the_pause_ends_with_room(
        self, shard: Shard, clock: Clock
    ) -> None:
        for number, kind in enumerate(("build", "stage", "build")):
            find_full(shard, kind, f"{number}.parquet")
        ((word, fields),) = shard.events.all
        assert (word, fields["path"]) == ("disk_full", "0.parquet")
        assert waits(shard, "build") and waits(shard, "stage"), "whatever writes there"
        assert not waits(shard, "sync")
        clock.now += 3600
        assert waits(shard), "it waits for room, not for time"
        shard.measure(free=500 * MIB)
        assert not waits(shard)
        shard.state.pauses.disk_works("build")
        assert shard.events.words == ["disk_full", "disk_has_room"]

    def test_who_finished_in_the_last_free_bytes_does_not_end_the_episode(
        self, shard: Shard, clock: Clock
    ) -> None:
        find_full(shard)
        clock.now += 0.5
        shard.state.pauses.disk_works("build")
        assert shard.events.words == ["disk_full"] and waits(shard)

    def test_an_unmeasured_disk_is_not_written_to(self, shard: Shard, clock: Clock) -> None:
        find_full(shard)
        shard.measure(free=900 * MIB)
        clock.now += 100
        assert not waits(shard)
        shard.state.hot.measure_soon()
        assert waits(shard)

    def test_once_gives_up_where_writes_fail_although_there_seems_to_be_room(
        self, make_shard: MakeShard, clock: Clock
    ) -> None:
        shard = make_shard(once=True)
        shard.look()
        with pytest.raises(StorageError, match="hot is full"):
            for _ in range(int(ONCE_WAITS_S / LOOK_S) + 2):
                find_full(shard)
                shard.measure(free=500 * MIB)
                shard.state.pauses.refresh()
                clock.now += LOOK_S
                assert not waits(shard), "trying is the only way to know"

    def test_once_goes_on_where_room_came_and_nothing_wrote_there_since(
        self, make_shard: MakeShard, clock: Clock
    ) -> None:
        shard = make_shard(once=True)
        shard.look()
        find_full(shard)
        clock.now += ONCE_WAITS_S + 1
        shard.measure(free=500 * MIB)
        shard.state.pauses.refresh()

    def test_once_gives_up_when_no_room_comes(self, make_shard: MakeShard, clock: Clock) -> None:
        shard = make_shard(once=True)
        shard.look()
        find_full(shard)
        shard.state.pauses.refresh()
        clock.now += ONCE_WAITS_S + 1
        with pytest.raises(StorageError, match="hot is full"):
            shard.state.pauses.refresh()


class TestSourceAway:
    @pytest.fixture
    def shard(self, shard: Shard) -> Shard:
        shard.source()
        return shard

    @staticmethod
    def stage(shard: Shard, outcome: Outcome) -> float:
        """When staging may go on after a copy that ended so."""
        shard.job("stage", work=SourceWork())
        shard.end("a", outcome)
        return shard.state.pauses.until("stage")

    def test_nothing_is_staged_for_a_while_and_it_is_told_once(self, shard: Shard) -> None:
        pauses = shard.state.pauses
        assert (pauses.until("stage"), pauses.source_trouble()) == (0.0, "")
        for outcome in (AWAY, Outcome("silent", "no word"), Outcome("stalled", "no work"), AWAY):
            assert self.stage(shard, outcome) > time.monotonic()
        assert "mount it" in pauses.source_trouble()
        assert self.stage(shard, STAGED) == 0.0
        assert pauses.source_trouble() == ""
        told = [word for word in shard.events.words if "available" in word]
        assert told == ["source_unavailable", "source_available"]

    def test_what_hangs_in_the_kernel_keeps_others_from_hanging_there_too(self, shard: Shard) -> None:
        job = shard.job("prove", work=SourceWork())
        job.abandoned = True
        assert shard.state.pauses.until("stage") == 0.0
        shard.source("b")
        job = shard.job("stage", "b", work=SourceWork())
        job.abandoned = True
        assert shard.state.pauses.until("stage") == math.inf
        assert "hangs" in shard.state.pauses.source_trouble()

    def test_once_gives_up_at_last(self, make_shard: MakeShard, clock: Clock) -> None:
        shard = make_shard(once=True)
        shard.source()
        with pytest.raises(UnavailableError, match="mount it"):
            for _ in range(9):
                self.stage(shard, AWAY)
                clock.now += 5.0
                shard.state.pauses.refresh()
