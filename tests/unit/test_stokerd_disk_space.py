"""Room on hot where downloads land there too: their files are staged by links, and sets come before them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.schedule.state import Room
from stoker.observe.ledger import Claim, Disk, read_claims, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR, StateLayout
from stokerd.sharding.growth import GrowthDesk
from stokerd.sharding.space import DiskSpace

MIB = 1 << 20
FLOOR = 200 * MIB
DEVICE = 7


class WorkerPool(dict[str, Any]):
    """Nobody has anything in hand; its `busy` are said to have."""


class Site:
    """A hot disk with 100 MiB free, which is below the floor; everybody else's claims."""

    def __init__(self, state: Path, kind: str, warm: Path | None = None) -> None:
        self.layout = StateLayout(state)
        self.layout.create()
        pipeline = SimpleNamespace(
            hot=state / "hot",
            warm=warm,
            stage=SimpleNamespace(free_floor=FLOOR),
            evict=SimpleNamespace(target_free=None),
            shard=SimpleNamespace(release="after_proof"),
            dataset=SimpleNamespace(source=SimpleNamespace(kind=kind)),
        )
        self.sources = Catalog()
        self.crew: Any = WorkerPool()
        self.crew.busy = {}
        self.hot: Any = SimpleNamespace(known=True, measured=True, building_bytes={}, partial={})
        self.hot.measure_soon = lambda: None
        self.free(100 * MIB)
        self.space = DiskSpace(
            SimpleNamespace(pipeline=pipeline, layout=self.layout),  # type: ignore[arg-type]
            crew=self.crew,
            book=SimpleNamespace(sources=self.sources, changes=0),  # type: ignore[arg-type]
            pinning=SimpleNamespace(pin=None),  # type: ignore[arg-type]
            told=None,  # type: ignore[arg-type]
            hot=self.hot,
            warm=SimpleNamespace(disk=None),  # type: ignore[arg-type]
        )

    def free(self, size: int) -> None:
        self.hot.disk = Disk(DEVICE, 1000 * MIB, size)

    def room(self, *, linked: bool = True) -> Room:
        self.space.refresh(linked=linked)
        return self.space.schedule_room(frozenset(), 0)

    def claim(self, daemon: str, purpose: Any, size: int) -> None:
        write_claims(self.layout, daemon, [Claim(DEVICE, "/hot", purpose, size)])


class Growing:
    """A folder source's file that is expected to take some 1.5 MiB, in its build; what is told about it."""

    def __init__(self, state: Path) -> None:
        self.site, self.events, self.told = Site(state, "folder"), [], []
        events: Any = SimpleNamespace(record=lambda word, **fields: self.events.append((word, fields)))
        self.source = Source("d", "a", MIB, "ab" * 32, "building", key="cd" * 32)
        self.site.sources.put(self.source)
        self.desk = GrowthDesk(
            events,
            self.site.crew,
            SimpleNamespace(sources=self.site.sources),  # type: ignore[arg-type]
            self.site.space,
            self.site.hot,
        )
        worker = SimpleNamespace(send=self.told.append)
        self.job: Any = SimpleNamespace(subject="a", facts={}, worker=worker)
        self.site.crew.jobs, self.site.crew.busy, self.site.crew["a"] = [self.job], {"a": "build"}, self.job
        self.site.free(400 * MIB)

    def begins(self) -> int:
        bound = self.desk.begin(self.source)
        self.site.space.refresh(linked=False)
        return bound

    def asks(self, written: int, needed: int) -> int:
        """What it is told."""
        self.desk.hear(self.job, {"written": written, "needed": needed})
        self.desk.act(linked=False)
        return int(self.told[-1]["room"])

    def ends(self) -> dict[str, Any] | None:
        self.site.crew.busy, self.site.crew.jobs = {}, []
        del self.site.crew["a"]
        finding = self.desk.refused(self.job, self.source)
        self.site.space.refresh(linked=False)
        return finding

    @property
    def claimed(self) -> int:
        return sum(claim.bytes for claim in read_claims(self.site.layout, STAGE_SHARD))


def test_what_a_growing_build_is_granted_is_claimed_first(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    first = growing.begins()
    assert MIB < first < growing.claimed < 2 * MIB
    bound = growing.asks(first, 10 * MIB)
    assert bound > 10 * MIB
    assert growing.claimed > bound
    growing.site.hot.measured = False
    growing.desk.hear(growing.job, {"written": bound, "needed": bound + MIB})
    growing.desk.act(linked=False)
    assert len(growing.told) == 1, "not by a measure taken before it asked"


def test_after_a_restart_what_lies_on_hot_tells_how_large_the_claim_is(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.site.hot.building_bytes = {str(growing.source.key)[:16]: 90 * MIB}
    assert growing.begins() > 89 * MIB
    assert growing.asks(90 * MIB, 98 * MIB) > 98 * MIB


def test_a_build_that_is_set_back_claims_nothing_until_there_is_more_room(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.begins()
    growing.site.free(FLOOR + 2 * MIB)
    assert growing.asks(60 * MIB, 70 * MIB) == 0
    assert growing.ends() is None
    assert [word for word, _ in growing.events] == ["build_set_back"]
    assert growing.claimed < 2 * MIB
    assert growing.desk.held_back() == ["a"], "nothing has left"
    growing.site.free(FLOOR + 75 * MIB)
    assert growing.desk.held_back() == ["a"], "the same would happen again"
    growing.site.free(FLOOR + 95 * MIB)
    assert growing.desk.held_back() == []
    assert growing.begins() > 85 * MIB
    assert growing.claimed > 85 * MIB


def test_a_file_whose_set_hot_could_never_hold_is_found_too_large_with_its_figures(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.begins()
    growing.site.free(FLOOR + 2 * MIB)
    assert growing.asks(590 * MIB, 600 * MIB) == 0
    finding = growing.ends()
    assert finding is not None and finding["reason"] == EXCEEDS_DISK
    assert finding["needed_bytes"] > 600 * MIB
    assert finding["room_bytes"] == 1000 * MIB - FLOOR - MIB, "all but the floor and the file itself"
    assert not growing.desk.held_back() and not growing.events


def test_downloads_that_fill_hot_to_the_floor_do_not_keep_their_sets_from_being_built(tmp_path: Path) -> None:
    site = Site(tmp_path, "hub")
    site.claim(DOWNLOAD_WATCHDOG, "landing", 90 * MIB)
    assert site.room().stage == 100 * MIB, "neither the floor nor what is still to land counts"
    site.claim(TRAIN_SUPERVISOR, "checkpoints", 30 * MIB)
    assert site.room().stage == 70 * MIB
    site.sources.put(Source("d", "a", 10 * MIB, "ab" * 32, "staged"))
    less = site.room().stage
    assert less is not None and less < 60 * MIB, "the set of what is staged comes first"


@pytest.mark.parametrize(("kind", "warm"), [("folder", None), ("hub", Path("/warm"))])
def test_what_is_copied_or_not_fetched_keeps_the_floor(tmp_path: Path, kind: str, warm: Path | None) -> None:
    for linked in (True, False):
        room = Site(tmp_path, kind, warm).room(linked=linked)
        assert (room.stage, room.one_stage) == (100 * MIB - FLOOR, False)


def test_where_links_are_refused_the_floor_holds_again(tmp_path: Path) -> None:
    room = Site(tmp_path, "urls").room(linked=False)
    assert (room.stage, room.one_stage) == (100 * MIB - FLOOR, False)


def test_only_the_first_file_is_staged_whatever_the_room(tmp_path: Path) -> None:
    site = Site(tmp_path, "urls")
    assert site.room().one_stage
    site.sources.put(Source("d", "a", 10 * MIB, "ab" * 32))
    site.crew.busy = {"a": "stage"}
    assert not site.room().one_stage
    site.crew.busy = {}
    site.sources.put(Source("d", "a", 10 * MIB, "ab" * 32, "staged"))
    assert not site.room().one_stage
