"""What the stage-shard loop demands of the landing: written once, kept over restarts, taken out when true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.corpus.records.receipts import Demand, Unneeded, read_demand
from stokerd.sharding.record_actions import LEAST_MISSED, keep_demand
from support.shard_state import MakeShard, Shard


class Landing:
    """The loop's demand as the download watchdog reads it."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        shard.pin()
        shard.look()
        shard.events.all.clear()

    def put(self, path: str, source: Any, receipt: Any, **changes: Any) -> None:
        """A path's records as they are now."""
        self.shard.source(path, source, **changes)
        self.shard.receipt(path, receipt, sha256=self.shard.on_disk(path).sha256)

    def turn(self, **changes: Any) -> Demand:
        """The demand after one turn of the loop."""
        situation = replace(
            self.shard.situation(), **{"published": frozenset(), "uncertain": False, **changes}
        )
        self.shard.apply(keep_demand(self.shard.dataset, situation))
        return read_demand(self.shard.layout, "prose")

    def unneeded(self, path: str, owner: str = "") -> dict[str, Unneeded]:
        return {path: Unneeded(self.shard.on_disk(path).sha256, owner or path)}

    @property
    def shown(self) -> Any:
        self.shard.status()
        return self.shard.context.metrics.status.get("landing")


@pytest.fixture
def landing(make_shard: MakeShard) -> Landing:
    return Landing(make_shard(dataset__source={"kind": "hub", "repo": "some/where"}))


def test_a_folders_files_are_asked_nothing_about(make_shard: MakeShard) -> None:
    folder = Landing(make_shard())
    folder.put("a", "released", "verified")
    assert folder.turn() == Demand()
    assert folder.shown is None


def test_a_removal_is_asked_once_over_turns_and_restarts(landing: Landing) -> None:
    landing.put("a", "proven", "verified")
    assert landing.turn() == Demand()
    landing.put("a", "released", "verified")
    first = landing.turn()
    assert first == Demand(unneeded=landing.unneeded("a"))
    written = landing.shard.layout.demand.stat().st_mtime_ns
    landing.turn()
    landing.shard.start()
    landing.shard.read()
    landing.shard.look()
    assert landing.turn() == first
    assert landing.shard.layout.demand.stat().st_mtime_ns == written
    assert landing.shown == {"unneeded_bytes": 1 << 20, "asked": {"release": 1, "fetch": 0}}
    landing.put("a", "released", "releasing")
    assert landing.turn() == Demand()
    assert landing.shown["asked"] == {"release": 0, "fetch": 0}


def test_what_was_lost_is_asked_for_until_it_is_here_and_no_more_than_so_many(landing: Landing) -> None:
    paths = [f"{number:02d}" for number in range(LEAST_MISSED + 1)]
    for path in paths:
        landing.put(path, "seen", "released")
    assert list(landing.turn().missed) == paths[:-1]
    told = [(word, fields["path"]) for word, fields in landing.shard.events.all]
    assert told == [("source_wanted_again", path) for path in paths[:-1]]
    landing.put("00", "seen", "disputed")
    assert "16" not in landing.turn().missed, "it is not here yet"
    landing.put("00", "seen", "verified")
    assert "16" in landing.turn().missed


def test_what_cannot_be_known_yet_is_asked_when_it_is(landing: Landing) -> None:
    landing.put("a", "seen", "released")
    assert landing.turn(uncertain=True) == Demand()
    assert list(landing.turn().missed) == ["a"]


def test_a_duplicates_file_goes_when_only_the_owners_record_changes(landing: Landing) -> None:
    landing.put("a", "proven", "verified")
    landing.put("b", "duplicate", "verified", content="a")
    assert landing.turn() == Demand()
    landing.put("a", "released", "verified")
    assert landing.turn().unneeded == {**landing.unneeded("a"), **landing.unneeded("b", owner="a")}


def test_the_demand_is_durable_before_the_event_that_speaks_of_it(landing: Landing) -> None:
    landing.put("a", "seen", "released")
    effects = keep_demand(landing.shard.dataset, landing.shard.situation())
    assert landing.shard.apply(effects) == ["SetDemand", "source_wanted_again"]
