"""Room on hot: what builds may grow to, and what downloads that land there leave of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.records.sources import EXCEEDS_DISK
from stoker.corpus.schedule.decide import buildable, decide
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Action, Limits, Room
from stoker.corpus.staging.disk_contents import FILES_BYTES, parquet_name
from stoker.observe.ledger import Claim, read_claims, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stokerd.sharding import growth
from stokerd.sharding.placement import choose
from stokerd.sharding.situation import rooms
from support.shard_state import MIB, MakeShard, Shard

FLOOR = 200 * MIB
MANY = Limits(stagers=1, builders=2, queue_files=1, queue_bytes=1, release="never")
STAGE = {"settle": "0s", "free_floor": f"{FLOOR}B"}


class Growing:
    """A folder's file that is expected to take some 1.5 MiB, in its build, on a hot disk of 1000 MiB."""

    def __init__(self, make_shard: MakeShard) -> None:
        self.shard = make_shard(stage=STAGE)
        self.shard.pin()
        self.shard.look(free=400 * MIB)
        self.shard.source(state="building")

    def begins(self) -> int:
        self.shard.job("build")
        self.shard.state.claim_space()
        return int(self.shard.pool.tasks["a"]["room"])

    def asks(self, written: int, needed: int, *, free: int = 400 * MIB) -> int:
        """What it is told, once hot was measured."""
        message = {"kind": "room", "written": written - FILES_BYTES, "needed": needed - FILES_BYTES}
        self.shard.hear("a", message)
        assert (
            self.shard.apply(growth.answer_growth(self.shard.dataset, self.shard.state.claim_space)) == []
        ), "not by a measure from before it asked"
        self.measured(free)
        self.shard.apply(growth.answer_growth(self.shard.dataset, self.shard.state.claim_space))
        return int(self.shard.sent("a")[-1]["room"])

    def measured(self, free: int) -> None:
        self.shard.measure(free=free)
        self.shard.state.claim_space()

    def ends(self) -> list[str]:
        said = self.shard.end("a", Outcome("outgrown", "no room", {"status": "outgrown"}))
        self.shard.state.claim_space()
        return said

    def may_begin(self, free: int) -> bool:
        """Whether its build may begin with so much of hot free."""
        self.measured(free)
        self.shard.dataset.placement.wants = choose(self.shard.dataset)
        return Action("build", "a") in decide(self.shard.situation(), time.monotonic())

    @property
    def claimed(self) -> int:
        return sum(claim.bytes for claim in read_claims(self.shard.layout, STAGE_SHARD))


@pytest.fixture
def growing(make_shard: MakeShard) -> Growing:
    return Growing(make_shard)


def test_what_a_growing_build_is_granted_is_claimed_first(growing: Growing) -> None:
    first = growing.begins()
    assert MIB < first < growing.claimed < 2 * MIB
    bound = growing.asks(first, 10 * MIB)
    assert bound > 10 * MIB - FILES_BYTES
    assert growing.claimed > bound


def test_after_a_restart_what_lies_on_hot_tells_how_large_the_claim_is(growing: Growing) -> None:
    key = str(growing.shard.on_disk().key)[:16]
    growing.shard.look(free=400 * MIB, building=(key,), building_bytes={key: 90 * MIB})
    assert growing.begins() > 89 * MIB
    assert growing.asks(90 * MIB, 98 * MIB) > 97 * MIB


def test_a_build_that_is_set_back_claims_nothing_until_there_is_more_room(growing: Growing) -> None:
    growing.begins()
    assert growing.asks(60 * MIB, 70 * MIB, free=FLOOR + 2 * MIB) == 0
    assert growing.ends() == ["build_set_back"]
    assert not growing.may_begin(FLOOR + 2 * MIB), "nothing has left"
    assert growing.claimed < 2 * MIB
    assert not growing.may_begin(FLOOR + 75 * MIB), "the same would happen again"
    growing.shard.source("b", "building")
    order = buildable(replace(growing.shard.situation(), limits=MANY), time.monotonic())
    assert order == ["b", "a"], "it keeps nobody waiting"
    growing.shard.dataset.drop("b")
    assert growing.may_begin(FLOOR + 95 * MIB)
    assert growing.begins() > 85 * MIB
    assert growing.claimed > 85 * MIB


def test_a_file_whose_set_hot_could_never_hold_is_found_too_large_with_its_figures(growing: Growing) -> None:
    growing.begins()
    assert growing.asks(590 * MIB, 600 * MIB, free=FLOOR + 2 * MIB) == 0
    assert growing.ends() == [], "the event comes once the file is in quarantine"
    finding = growing.shard.dataset.convicted["a"]
    assert finding.reason == EXCEEDS_DISK
    assert finding.figures["needed_bytes"] >= 600 * MIB
    assert finding.figures["room_bytes"] == 1000 * MIB - FLOOR - MIB, "all but the floor and the file itself"
    assert not growing.shard.dataset.needs.outgrown


class TestLandingOnHot:
    """A hot disk with 100 MiB free, which is below the floor; everybody else's claims."""

    @staticmethod
    def shard(make_shard: MakeShard, kind: str, warm: Path | None = None) -> Shard:
        where = {"path": "/there"} if kind == "folder" else {"repo": "some/where"}
        more = {} if warm is None else {"warm": str(warm)}
        shard = make_shard(stage=STAGE, dataset__source={"kind": kind, **where}, **more)
        shard.look(free=100 * MIB)
        return shard

    @staticmethod
    def room(shard: Shard, *, linked: bool = True) -> Room:
        shard.dataset.needs.is_linked = linked
        shard.measure(free=100 * MIB)
        shard.state.claim_space()
        return rooms(shard.dataset, frozenset())["stage"]

    @staticmethod
    def claim(shard: Shard, daemon: str, purpose: Any, size: int) -> None:
        write_claims(shard.layout, daemon, [Claim(7, "/hot", purpose, size)])

    def test_downloads_that_fill_hot_to_the_floor_do_not_keep_their_sets_from_being_built(
        self, make_shard: MakeShard
    ) -> None:
        shard = self.shard(make_shard, "hub")
        self.claim(shard, DOWNLOAD_WATCHDOG, "landing", 90 * MIB)
        assert self.room(shard).left == 100 * MIB, "neither the floor nor what is still to land counts"
        self.claim(shard, TRAIN_SUPERVISOR, "checkpoints", 30 * MIB)
        assert self.room(shard).left == 70 * MIB
        shard.source(state="staged", size=10 * MIB)
        less = self.room(shard).left
        assert less is not None and less < 60 * MIB, "the set of what is staged comes first"

    @pytest.mark.parametrize(("kind", "warm"), [("folder", None), ("hub", Path("/warm"))])
    def test_what_is_copied_or_not_fetched_keeps_the_floor(
        self, make_shard: MakeShard, kind: str, warm: Path | None
    ) -> None:
        shard = self.shard(make_shard, kind, warm)
        for linked in (True, False):
            room = self.room(shard, linked=linked)
            assert (room.left, room.first_goes) == (100 * MIB - FLOOR, False)

    def test_where_links_are_refused_the_floor_holds_again(self, make_shard: MakeShard) -> None:
        room = self.room(self.shard(make_shard, "hub"), linked=False)
        assert (room.left, room.first_goes) == (100 * MIB - FLOOR, False)

    def test_only_the_first_file_is_staged_whatever_the_room(self, make_shard: MakeShard) -> None:
        shard = self.shard(make_shard, "hub")
        assert self.room(shard).first_goes
        shard.source()
        shard.receipt()
        shard.job("stage")
        assert not self.room(shard).first_goes
        shard.done(status="staged", how="link", xxh3="x")
        assert not self.room(shard).first_goes


class TestClaims:
    """What work that began will still take of hot and warm, as the other daemons read it."""

    @staticmethod
    def claimed(shard: Shard) -> dict[str, int]:
        shard.state.claim_space()
        return {claim.purpose: claim.bytes for claim in read_claims(shard.layout, STAGE_SHARD)}

    def test_what_is_under_way_is_claimed_and_what_is_built_of_it_is_not(self, make_shard: MakeShard) -> None:
        shard = make_shard(stage=STAGE)
        shard.pin()
        shard.look()
        source = shard.source(state="building", size=8 * MIB)
        whole = shard.dataset.needs.estimate.built(source)
        assert self.claimed(shard) == {"sets": whole}
        shard.state.hot.building_bytes[source.key16] = whole // 2
        assert whole // 2 <= self.claimed(shard)["sets"] <= whole * 5 // 8

    @pytest.mark.parametrize(("copied", "claimed"), [(0, MIB), (MIB - 1, 1), (2 * MIB, None)])
    def test_of_a_file_that_is_brought_what_is_not_there_yet_is_claimed(
        self, make_shard: MakeShard, copied: int, claimed: int | None
    ) -> None:
        shard = make_shard(stage=STAGE)
        shard.look()
        source = shard.source()
        shard.receipt()
        shard.job("stage")
        shard.state.hot.partial = {parquet_name(source): copied}
        assert self.claimed(shard).get("staging") == claimed
        shard.dataset.needs.is_linked = True
        assert "staging" not in self.claimed(shard), "a link takes no room"

    def test_a_set_on_its_way_is_claimed_where_it_comes(self, make_shard: MakeShard) -> None:
        shard = make_shard(stage=STAGE, warm="/warm")
        shard.look()
        shard.source(state="proven")
        shard.job("hydrate")
        assert self.claimed(shard) == {
            "sets": shard.dataset.needs.estimate.published(shard.dataset.sources["a"])
        }

    def test_before_there_is_a_tokenizer_one_set_is_reckoned_with_not_all(
        self, make_shard: MakeShard
    ) -> None:
        shard = make_shard(stage=STAGE)
        shard.look()
        sources = [shard.source(path, "staged") for path in "abc"]
        alone = shard.dataset.needs.estimate.built(sources[0])
        assert self.claimed(shard) == {"sets": alone}
        shard.pin()
        assert self.claimed(shard) == {"sets": 3 * alone}
