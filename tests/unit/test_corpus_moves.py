"""Which sets move between hot and warm, what the work will still take, and what looks at the disks tell."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import decide, decide_moves
from stoker.corpus.schedule.state import Action, Limits, Room, Situation, WarmContents
from stoker.corpus.staging.disk_contents import ScanResult, ratio_of, reconcile_hot, reconcile_warm, set_bytes
from stoker.kit.workers.child import insist_mounted
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout, WarmLayout
from support.books import books_of

LIMITS = Limits(stagers=2, builders=2, queue_files=9, queue_bytes=10**9, release="after_sync")
BOOKS = books_of(900, 100, documents=10)


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def key_of(sha256: str) -> str:
    return sha("key of " + sha256)


def source(path: str, state: str = "released", **changes: object) -> Source:
    """A source; a published one has its set on hot and on warm unless told otherwise."""
    published = state in ("proven", "synced", "released")
    plain = Source("d", path, 100, sha(path), state=state, books=BOOKS if published else None)
    warm = state in ("synced", "released")
    return replace(plain, key=key_of(sha(path)) if published else None, on_warm=warm, **changes)


def key16(path: str) -> str:
    return key_of(sha(path))[:16]


def situation(*sources: Source, **changes: object) -> Situation:
    on_hot = frozenset(key16(each.path) for each in sources if each.key and not each.evicted)
    plain = Situation(
        {}, Catalog({each.path: each for each in sources}), LIMITS, key_of=key_of, published=on_hot
    )
    return replace(plain, **changes)


def contents(**changes: object) -> WarmContents:
    return WarmContents(answers=True, writable=True, **changes)


def room_of(left: int | None) -> Room:
    """Room of so many bytes, of which each file takes its size."""
    return Room(left, lambda one: one.size)


def moves(situation: Situation, contents: WarmContents) -> tuple[object, ...]:
    return decide_moves(replace(situation, warm=contents), 100.0)


def recalls(now: Situation, contents: WarmContents) -> frozenset[str]:
    return replace(now, warm=contents).recallable


class TestCopies:
    def test_what_has_no_proven_copy_is_copied_a_few_at_a_time(self) -> None:
        sources = [source(path, "proven") for path in "abc"]
        assert moves(situation(*sources), contents()) == (Action("sync", "a"), Action("sync", "b"))
        assert moves(situation(*sources, busy={"a": "sync"}), contents()) == (Action("sync", "b"),)
        assert moves(situation(source("a")), contents()) == ()
        later_warm = source(
            "a",
            "released",
        ).moved("proven", on_warm=False)
        assert moves(situation(later_warm), contents()) == (Action("sync", "a"),)

    @pytest.mark.parametrize(
        "trouble",
        [{"answers": False}, {"writable": False}],
    )
    def test_nothing_is_copied_to_a_disk_that_takes_nothing(self, trouble: dict[str, object]) -> None:
        assert moves(situation(source("a", "proven")), replace(contents(), **trouble)) == ()

    @pytest.mark.parametrize(("left", "copied"), [(None, 0), (50, 0), (150, 1), (200, 2)])
    def test_as_much_is_copied_as_there_is_room_for(self, left: int | None, copied: int) -> None:
        now = situation(source("a", "proven"), source("b", "proven"), rooms={"sync": room_of(left)})
        assert len(moves(now, contents())) == copied

    def test_a_failure_holds_its_own_path_and_for_a_moment_all_of_its_kind(self) -> None:
        both = situation(source("a", "proven"), source("b", "proven"))
        assert moves(replace(both, not_before={"a": 101.0}), contents()) == (Action("sync", "b"),)
        assert moves(replace(both, paused_until={"sync": 101.0}), contents()) == ()

    def test_parquet_goes_after_its_set_was_copied_not_before(self) -> None:
        assert decide(situation(source("a", "proven")), 100.0) == ()
        assert decide(situation(source("a", "synced")), 100.0) == (Action("release", "a"),)


class TestLeaving:
    def test_an_intent_is_carried_out_and_taken_back_while_warm_is_away(self) -> None:
        leaving = situation(source("a", evicting=True), source("b"))
        assert moves(leaving, contents()) == (Action("evict", "a"),)
        assert moves(leaving, WarmContents()) == (Action("keep_hot", "a"),)
        renamed = replace(leaving, published=frozenset())
        assert moves(renamed, WarmContents()) == ()
        assert moves(renamed, contents()) == (Action("evict", "a"),)

    def test_what_lies_on_hot_against_its_record_goes_unless_somebody_wants_it(self) -> None:
        left = replace(situation(source("a", evicted=True)), published=frozenset({key16("a")}))
        assert moves(left, contents()) == (Action("evict", "a"),)
        assert moves(left, contents(wanted=frozenset({"a"}), hydrate=("a",))) == (Action("hydrate", "a"),)

    def test_a_set_that_is_wanted_while_it_leaves_comes_back_once_it_has_left(self) -> None:
        leaving = situation(source("a", evicting=True))
        assert moves(leaving, contents(wanted=frozenset({"a"}), hydrate=("a",))) == (Action("evict", "a"),)

    def test_a_set_that_waits_for_quarantine_is_not_moved(self) -> None:
        wrong = situation(source("a", evicted=True), convicted={"a"})
        assert moves(wrong, contents(hydrate=("a",))) == ()


class TestComingBack:
    def test_what_is_wanted_comes_back_in_order(self) -> None:
        cold = situation(*(source(path, evicted=True) for path in "abc"))
        assert moves(cold, contents(hydrate=("c", "a"))) == (Action("hydrate", "c"), Action("hydrate", "a"))
        assert moves(replace(cold, busy={"b": "hydrate"}), contents(hydrate=("c", "a"))) == (
            Action("hydrate", "c"),
        )
        assert moves(cold, WarmContents(hydrate=("c",))) == ()
        read_only = replace(contents(hydrate=("c",)), writable=False)
        assert moves(cold, read_only) == (Action("hydrate", "c"),)

    def test_a_set_without_a_record_is_proven_where_it_lies_and_not_built_again(self) -> None:
        there = contents(published=frozenset({key16("a"), key16("b")}))
        seen = situation(source("a", "seen"), source("b"), source("c", "seen"))
        assert moves(seen, there) == (Action("recall", "a"),)
        assert recalls(seen, there) == {"a"}
        assert recalls(seen, replace(there, rotten=frozenset({key_of(sha("a"))}))) == set()
        assert recalls(replace(seen, published=frozenset({key16("a")})), there) == set()


class TestLooks:
    def test_a_set_gone_from_hot_is_on_warm_only_or_has_to_be_built(self) -> None:
        sources = {
            each.path: each for each in (source("a"), source("b", "proven"), source("c", evicted=True))
        }
        sources["d"] = source("d", evicting=True)
        found = reconcile_hot(HotLayout(Path("/hot")), ScanResult(), sources)
        assert found.lost == ("a",)
        assert [path for path, _ in found.renew] == ["b"]

    def test_trash_goes_but_not_that_of_an_eviction_to_finish(self) -> None:
        sources = {"a": source("a", evicting=True)}
        seen = ScanResult((key16("a"),), trash=(f"{key16('a')}-1", f"{key16('b')}-2"))
        found = reconcile_hot(HotLayout(Path("/hot")), seen, sources)
        assert found.remove == (f"/hot/.trash/{key16('b')}-2",)

    def test_a_copy_gone_from_warm_is_made_again_and_an_only_set_given_up_at_the_second_look(self) -> None:
        warm, seen = WarmLayout(Path("/warm")), ScanResult((), ("/warm/shards/d/.tmp-x",), ("old-1",))
        sources = {"a": source("a"), "b": source("b", evicted=True), "c": source("c", evicting=True)}
        first = reconcile_warm(warm, seen, sources, gone_before=())
        assert (first.lost, first.renew, first.gone) == (("a",), (), {"b"})
        assert first.remove == ("/warm/shards/d/.tmp-x", "/warm/.trash/old-1")
        assert reconcile_warm(warm, seen, sources, gone_before=first.gone).renew[0][0] == "b"
        here = replace(seen, published=tuple(key16(path) for path in "abc"))
        assert reconcile_warm(warm, here, sources, gone_before=first.gone).renew == ()

    def test_another_disk_in_the_place_of_one_is_noticed(self, tmp_path: Path) -> None:
        lock = tmp_path / ".stoker-owner.lock"
        lock.touch()
        found = lock.stat()
        mark = {"path": str(lock), "device": found.st_dev, "inode": found.st_ino}
        insist_mounted([mark])
        with pytest.raises(UnavailableError, match="another disk is mounted there"):
            insist_mounted([mark, {**mark, "inode": found.st_ino + 1}])
        lock.unlink()
        with pytest.raises(UnavailableError, match="mount the disk again"):
            insist_mounted([mark])


class TestRoom:
    def seen(self, **sizes: int) -> Situation:
        sources = [replace(source(path, "seen"), size=size) for path, size in sizes.items()]
        receipts = {
            one.path: Receipt("d", one.path, f"/f/{one.path}", one.size, one.sha256, "", "e", "verified")
            for one in sources
        }
        return situation(*sources, receipts=receipts)

    def test_nothing_is_staged_that_does_not_fit_and_nothing_overtakes_it(self) -> None:
        now = self.seen(a=100, b=500, c=10)
        assert decide(replace(now, rooms={"stage": room_of(300)}), 100.0) == (Action("stage", "a"),)
        assert decide(replace(now, rooms={"stage": room_of(None)}), 100.0) == ()

    def test_a_build_begins_where_its_set_fits_and_the_first_of_all_wherever(self) -> None:
        staged = situation(source("a", "staged"), source("b", "staged"))
        assert decide(replace(staged, rooms={"build": room_of(150)}), 100.0) == (Action("build", "a"),)
        assert decide(replace(staged, rooms={"build": room_of(50)}), 100.0) == ()
        first = replace(room_of(50), first_goes=True)
        assert decide(replace(staged, rooms={"build": first}), 100.0) == (Action("build", "a"),)

    def test_a_set_takes_its_tokens_and_what_finds_its_documents(self) -> None:
        assert set_bytes(BOOKS, 2) - set_bytes(None, 2) == 2000 + 160
        assert ratio_of(Catalog({"a": source("a", "staged")}).sums.measured, 2) is None
        big = replace(source("a"), size=10**6, books=books_of(250_000, documents=10))
        assert math.isclose(ratio_of(Catalog({"a": big}).sums.measured, 2) or 0, 0.54, abs_tol=0.01)
