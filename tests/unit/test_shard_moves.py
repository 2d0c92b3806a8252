"""What becomes of shard sets between hot and warm, and of what a look at a disk finds: as tables."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Action
from stoker.store.errors import LockHeld, StorageError, UnavailableError
from stokerd.sharding.activities import disks
from stokerd.sharding.activities.moves import DOUBTS
from stokerd.sharding.record_actions import take
from support.shard_state import BOOKS, MANIFEST, Clock, MakeShard, Shard

Facts = dict[str, Any]
WARM_ONLY: Facts = {"state": "synced", "on_warm": True, "evicted": True}
LEAVING: Facts = {"state": "synced", "on_warm": True, "evicting": True}
PROVEN: Facts = {"state": "proven"}
RELEASED: Facts = {"state": "released"}
AGAIN: Facts = {"state": "seen"}
# Kind and result, the record before, the effects, what the record says then.
ENDS: list[tuple[str, Facts, list[str], Facts]] = [
    ("sync copied", PROVEN, ["write synced", "shard_set_synced"], {"on_warm": True}),
    ("sync existed", RELEASED, ["write released", "shard_set_synced"], {"on_warm": True}),
    ("sync bad_source", PROVEN, ["shard_set_invalid", "start over"], AGAIN),
    ("sync missing", PROVEN, ["alert sync_failed"], PROVEN),
    ("hydrate copied", WARM_ONLY, ["write synced", "shard_set_hydrated"], {"evicted": False}),
    ("hydrate bad_source", WARM_ONLY, ["start over", "shard_set_invalid"], AGAIN),
    ("hydrate missing", WARM_ONLY, ["alert hydrate_failed"], WARM_ONLY),
    ("evict evicted", LEAVING, ["write synced", "shard_set_evicted"], WARM_ONLY),
    ("evict unreadable_copy", LEAVING, ["write synced", "eviction_cancelled"], {"evicted": False}),
    ("evict bad_copy", LEAVING, ["write proven", "shard_set_lost"], {"on_warm": False}),
    ("evict bad_copy", WARM_ONLY, ["start over", "shard_set_invalid"], AGAIN),
    ("evict lost", LEAVING, ["start over", "shard_set_invalid"], AGAIN),
    ("evict missing", LEAVING, ["alert evict_failed"], LEAVING),
]
RAW = {"reason": "why", "bytes": 5, "cached": False}


def key_of(shard: Shard) -> str:
    return shard.dataset.key(shard.dataset.sources["a"])


def moved(shard: Shard, kind: str, status: str, **result: Any) -> list[str]:
    shard.job(kind)
    return shard.done(**{**RAW, "status": status, **result})


class TestMoves:
    @pytest.mark.parametrize(("move", "before", "effects", "after"), ENDS)
    def test_each_end_is_on_record_before_its_event(
        self, warm_shard: Shard, move: str, before: Facts, effects: list[str], after: Facts
    ) -> None:
        kind, status = move.split()
        warm_shard.source(**before)
        assert moved(warm_shard, kind, status) == [f"over {kind}_failed", *effects]
        source = warm_shard.on_disk()
        assert {name: getattr(source, name) for name in after} == after
        assert source.evicting == after.get("evicting", False)

    def test_what_lies_where_is_known_before_the_next_look(self, warm_shard: Shard) -> None:
        hot, warm = warm_shard.state.hot.published, warm_shard.state.warm
        assert warm is not None
        key = str(warm_shard.source(state="proven").key)[:16]
        hot.add(key)
        moved(warm_shard, "sync", "copied")
        assert key in warm.published
        moved(warm_shard, "evict", "evicted")
        assert key not in hot
        moved(warm_shard, "hydrate", "copied")
        assert key in hot
        assert warm_shard.state.progress.moved_bytes == {"sync": 5, "evict": 5, "hydrate": 5}

    def test_a_copy_known_to_be_wrong_is_made_again_over_the_wrong_one(self, warm_shard: Shard) -> None:
        source = warm_shard.source(**WARM_ONLY)
        moved(warm_shard, "hydrate", "bad_source")
        assert warm_shard.dataset.rotten == {source.key}
        warm_shard.source(state="proven")
        moved(warm_shard, "sync", "copied")
        assert not warm_shard.dataset.rotten

    def test_what_fails_waits_with_all_that_goes_the_same_way_and_its_end_is_told(
        self, warm_shard: Shard, clock: Clock
    ) -> None:
        warm_shard.source(state="proven")
        warm_shard.job("sync")
        assert warm_shard.end("a", Outcome("again", "EIO")) == ["alert sync_failed"]
        assert warm_shard.state.pauses.until("sync") > clock.now
        assert warm_shard.state.pauses.until("hydrate") <= clock.now
        moved(warm_shard, "sync", "copied")
        assert warm_shard.state.pauses.until("sync") <= clock.now
        assert warm_shard.events.words == ["sync_failed", "moves_resumed", "shard_set_synced"]

    def test_a_copy_that_broke_off_leaves_nothing_on_hot(self, warm_shard: Shard) -> None:
        for kind in ("again", "disk_full"):
            warm_shard.source(**WARM_ONLY)
            warm_shard.job("hydrate")
            warm_shard.end("a", Outcome(kind, "why"))  # type: ignore[arg-type]
            ((place),) = warm_shard.state.hot.litter
            assert ".tmp-" in place and key_of(warm_shard)[:16] in place
            warm_shard.state.hot.litter.clear()

    @pytest.mark.parametrize(("kind", "place"), [("sync", "warm"), ("hydrate", "hot")])
    def test_a_full_disk_is_that_of_the_target(self, warm_shard: Shard, kind: str, place: str) -> None:
        warm_shard.source(**(WARM_ONLY if kind == "hydrate" else {"state": "proven"}))
        warm_shard.job(kind)
        assert warm_shard.end("a", Outcome("disk_full", "ENOSPC")) == []
        assert list(warm_shard.state.pauses.reasons()) == [f"disk_{place}"]

    def test_a_copy_that_only_the_page_cache_shows_is_doubted_some_times(self, warm_shard: Shard) -> None:
        warm_shard.source(**WARM_ONLY)
        for _ in range(DOUBTS - 1):
            warm_shard.job("hydrate")
            assert warm_shard.end("a", Outcome("storage", "page cache only")) == ["alert hydrate_failed"]
        warm_shard.job("hydrate")
        effects = ["alert hydrate_failed", "start over", "shard_set_invalid"]
        assert warm_shard.end("a", Outcome("storage", "page cache only")) == effects

    def test_once_gives_up_at_last(self, make_shard: MakeShard) -> None:
        shard = make_shard(once=True, warm="warm")
        shard.pin()
        shard.look()
        shard.source(state="proven")
        with pytest.raises(StorageError):
            for _ in range(9):
                shard.job("sync")
                shard.end("a", Outcome("storage", "EIO"))

    def test_a_set_stays_hot_where_its_copy_cannot_be_read_now(self, warm_shard: Shard) -> None:
        warm_shard.source(**LEAVING)
        assert warm_shard.apply(take(warm_shard.dataset, Action("keep_hot", "a"))) == [
            "write synced",
            "eviction_cancelled",
        ]
        assert warm_shard.on_disk().hot


class TestRecall:
    @pytest.mark.parametrize(
        ("verdict", "effects", "state"),
        [
            ("proven", ["write synced", "shard_set_recalled"], "synced"),
            ("invalid", ["shard_set_invalid"], "seen"),
            ("unreadable", ["alert recall_failed"], "seen"),
        ],
    )
    def test_a_set_whose_record_was_lost_is_found_on_warm(
        self, warm_shard: Shard, verdict: str, effects: list[str], state: str
    ) -> None:
        warm_shard.source()
        key = key_of(warm_shard)
        about = {"books": BOOKS, "manifest_sha256": MANIFEST, "key": key, "reason": "why"}
        warm_shard.job("recall")
        assert warm_shard.done(proofs=[{"verdict": verdict, **about}]) == effects
        source = warm_shard.on_disk()
        assert (source.state, source.evicted, source.on_warm) == (state, state == "synced", state == "synced")
        assert (key in warm_shard.dataset.rotten) == (verdict == "invalid")

    def test_a_content_has_one_owner(self, warm_shard: Shard) -> None:
        warm_shard.source()
        warm_shard.source("b", "proven", content="a")
        warm_shard.job("recall")
        assert warm_shard.done(proofs=[{"verdict": "proven"}]) == []


class TestLook:
    def test_the_first_look_at_hot_brings_the_records_in_line(self, make_shard: MakeShard) -> None:
        shard = make_shard()
        shard.pin()
        gone, there, staged = (
            shard.source("a", "proven"),
            shard.source("b", "proven"),
            shard.source("c", "staged"),
        )
        shard.look(published=(there.key16,), parquet=(), trash=("old",))
        assert {path: one.state for path, one in shard.data.sources().items()} == {
            gone.path: "seen",
            there.path: "proven",
            staged.path: "seen",
        }
        assert [fields["level"] for word, fields in shard.events.all if word == "source_renewed"] == [
            "warning"
        ] * 2
        assert any("old" in place for place in shard.state.hot.litter)

    def test_a_set_that_is_on_warm_is_brought_back(self, warm_shard: Shard) -> None:
        warm_shard.source(state="synced", on_warm=True)
        warm_shard.look(published=())
        assert warm_shard.events.words == ["shard_set_lost"]
        assert warm_shard.on_disk().evicted

    def test_only_what_was_so_when_the_look_began_is_held_against_it(self, shard: Shard) -> None:
        shard.state.hot.look_soon()
        shard.state.hot.question(shard.dataset.sources)
        shard.source(state="proven")
        nothing = dict.fromkeys(("parquet", "building", "published", "temporaries", "trash"), ())
        shard.hear("/hot-lister", {"kind": "seen", **nothing, "building_bytes": {}, "partial": {}})
        assert shard.on_disk().state == "proven"

    def test_what_is_worked_on_is_not_held_against_a_look(self, shard: Shard) -> None:
        shard.source(state="proven")
        shard.job("prove")
        shard.look(published=())
        assert shard.on_disk().state == "proven"

    def test_a_copy_that_is_gone_from_warm_is_made_again(self, warm_shard: Shard) -> None:
        warm_shard.source(state="synced", on_warm=True)
        warm_shard.look("warm", published=())
        assert warm_shard.events.words == ["shard_set_lost"]
        assert (warm_shard.on_disk().state, warm_shard.on_disk().on_warm) == ("proven", False)

    def test_a_set_that_was_on_warm_only_starts_over_when_a_second_look_misses_it_too(
        self, warm_shard: Shard
    ) -> None:
        warm_shard.source(**WARM_ONLY)
        warm_shard.look("warm", published=())
        assert warm_shard.on_disk().state == "synced"
        warm_shard.look("warm", published=())
        assert warm_shard.on_disk().state == "seen"

    def test_a_disk_that_goes_away_is_told_once_and_its_return_too(self, warm_shard: Shard) -> None:
        for place, words in (
            ("hot", ["list_failed", "list_succeeded"]),
            ("warm", ["warm_unavailable", "warm_available"]),
        ):
            warm_shard.events.all.clear()
            for _ in range(2):
                warm_shard.end(f"/{place}-lister", Outcome("again", "gone", code=UnavailableError.exit_code))
                warm_shard.job("list", f"/{place}-lister")
            warm_shard.pool.end(f"/{place}-lister")
            warm_shard.look(place)
            assert warm_shard.events.words == words

    def test_another_pipelines_disk_ends_the_daemon(self, shard: Shard) -> None:
        with pytest.raises(LockHeld):
            shard.end("/hot-lister", Outcome("again", "it is held", error="LockHeld", code=75))

    def test_once_gives_up_a_disk_that_is_not_there(self, make_shard: MakeShard) -> None:
        shard = make_shard(once=True)
        with pytest.raises(UnavailableError):
            for _ in range(9):
                shard.job("list", "/hot-lister")
                shard.end("/hot-lister", Outcome("again", "gone", code=UnavailableError.exit_code))

    def test_a_disk_that_turns_read_only_is_told_until_it_is_writable(self, warm_shard: Shard) -> None:
        for is_writable in (False, False, True):
            warm_shard.measure(free=1 << 30, writable=is_writable)
            assert warm_shard.state.hot.is_known == is_writable
        assert warm_shard.events.words == ["hot_read_only", "hot_writable"]
        warm_shard.measure("warm", free=1 << 30, writable=False)
        assert warm_shard.state.warm is not None and warm_shard.state.warm.is_known

    def test_a_disk_that_says_nothing_is_told_to_hang(self, warm_shard: Shard, clock: Clock) -> None:
        warm = warm_shard.state.warm
        assert warm is not None
        clock.now += 60
        warm_shard.apply(disks.tend(warm_shard.dataset))
        assert "look" in warm_shard.sent("/warm-lister")[-1]
        clock.now += disks.ANSWERS_WITHIN_S + 1
        assert not warm.is_known
        assert "alert warm_unavailable" in warm_shard.apply(disks.tend(warm_shard.dataset))

    def test_a_lister_that_ended_is_started_again(self, shard: Shard, clock: Clock) -> None:
        shard.end("/hot-lister", Outcome("killed", "by hand"))
        assert shard.apply(disks.tend(shard.dataset)) == []
        clock.now += 60
        assert shard.apply(disks.tend(shard.dataset)) == ["begin list"]
