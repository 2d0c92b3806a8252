"""Full disks in the stage-shard loop: said once, gone on with by themselves, given up with --once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stokerd.sharding.disk_full import ONCE_WAITS_S, TRIES_ONCE, FullDisks

from stoker.observe.ledger import Disk
from stoker.store.errors import StorageError
from stokerd.sharding import disk_full as full_disks

MIB = 1 << 20


class World:
    """A clock, two disks, and what was told."""

    def __init__(self, *, once: bool = False) -> None:
        self.now = 1000.0
        self.told: list[str] = []
        self.asked: list[str] = []
        self.hot: Disk | None = Disk(1, 1000 * MIB, 0)
        self.named: list[str | None] = []
        events = SimpleNamespace(record=self._record)
        context: Any = SimpleNamespace(events=events, once=once)
        self.disks = FullDisks(
            context,
            {"hot": lambda: self.hot, "warm": lambda: None, "state": lambda: None},
            {
                "hot": lambda: self.asked.append("hot"),
                "warm": lambda: self.asked.append("warm"),
                "state": lambda: None,
            },
        )

    def _record(self, word: str, path: str | None = None, **_: Any) -> None:
        self.told.append(word)
        self.named.append(path)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(full_disks.time, "monotonic", lambda: made.now)
    return made


def test_one_event_whatever_number_of_writers_and_the_pause_ends_with_room(world: World) -> None:
    for number, activity in enumerate(("build", "stage", "build")):
        world.disks.failed(activity, f"{number}.parquet", "ENOSPC")
    assert (world.told, world.named) == (["disk_full"], ["0.parquet"])
    assert list(world.disks.waiting()) == ["hot"], "whatever writes there"
    world.now += 3600
    assert world.disks.waiting(), "it waits for room, not for time"
    world.hot = Disk(1, 1000 * MIB, 500 * MIB)
    assert not world.disks.waiting()
    world.disks.works("build")
    assert world.told == ["disk_full", "disk_has_room"]


def test_who_finished_in_the_last_free_bytes_does_not_end_the_episode(world: World) -> None:
    world.disks.failed("build", "a.parquet", "ENOSPC")
    world.now += 0.5
    world.disks.works("build")
    assert world.told == ["disk_full"] and world.disks.waiting()


def test_a_disk_is_measured_every_few_seconds_while_it_is_waited_for(world: World) -> None:
    world.disks.failed("sync", "a.parquet", "ENOSPC")
    asked = []
    for _ in range(10):
        world.disks.look()
        asked.append(len(world.asked))
        world.now += 1.0
    assert asked[-1] >= 4 and set(world.asked) == {"warm"}
    assert world.disks.due <= world.now + 5


def test_an_unmeasured_disk_is_not_written_to(world: World) -> None:
    world.disks.failed("build", "a.parquet", "ENOSPC")
    world.hot = None
    world.now += 100
    assert world.disks.waiting()


def test_once_gives_up_after_some_tries_or_when_no_room_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(once=True)
    monkeypatch.setattr(full_disks.time, "monotonic", lambda: world.now)
    for _ in range(TRIES_ONCE - 1):
        world.disks.failed("build", "a.parquet", "ENOSPC")
    with pytest.raises(StorageError):
        world.disks.failed("build", "a.parquet", "ENOSPC")
    world = World(once=True)
    world.disks.failed("build", "a.parquet", "ENOSPC")
    world.disks.look()
    world.now += ONCE_WAITS_S + 1
    with pytest.raises(StorageError, match="hot is full"):
        world.disks.look()
