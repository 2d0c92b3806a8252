"""Room on hot where downloads land there too: their files are staged by links, and sets come before them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.corpus.catalog import Catalog
from stoker.corpus.situation import Room
from stoker.corpus.sources import Source
from stoker.observe.ledger import Claim, Disk, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG, TRAIN_SUPERVISOR, StateLayout
from stokerd.disk_space import DiskSpace

MIB = 1 << 20
FLOOR = 200 * MIB
DEVICE = 7


class Crew(dict[str, Any]):
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
            dataset=SimpleNamespace(source=SimpleNamespace(kind=kind)),
        )
        disk = Disk(DEVICE, 1000 * MIB, 100 * MIB)
        self.sources = Catalog()
        self.crew: Any = Crew()
        self.crew.busy = {}
        yard: Any = SimpleNamespace(disk=disk, known=True, measured=True, building_bytes={}, partial={})
        self.space = DiskSpace(
            SimpleNamespace(pipeline=pipeline, layout=self.layout),  # type: ignore[arg-type]
            crew=self.crew,
            book=SimpleNamespace(sources=self.sources, changes=0),  # type: ignore[arg-type]
            pinning=SimpleNamespace(pin=None),  # type: ignore[arg-type]
            told=None,  # type: ignore[arg-type]
            hot=yard,
            warm=SimpleNamespace(disk=None),  # type: ignore[arg-type]
        )

    def room(self, *, linked: bool = True) -> Room:
        self.space.refresh(linked=linked)
        return self.space.schedule_room(frozenset(), 0)

    def claim(self, daemon: str, purpose: Any, size: int) -> None:
        write_claims(self.layout, daemon, [Claim(DEVICE, "/hot", purpose, size)])


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
