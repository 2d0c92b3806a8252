"""What the stage-shard loop makes of fetched files: given up, given back, missed; as tables."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from stoker.corpus.quarantine.directory import QuarantineEntry, due
from stoker.corpus.records.dataset import choose_training_set
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Demand, Listing, Receipt, Unneeded
from stoker.corpus.records.sources import DOWNLOAD_FAILED, SOURCE_ROTTEN, Source
from stoker.corpus.schedule.decide import decide, demand_of, differs, may_be_demanded
from stoker.corpus.schedule.state import Action, Limits, Room, Situation, WarmContents

LIMITS = Limits(stagers=1, builders=1, queue_files=3, queue_bytes=1000, release="after_proof")


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def key_of(sha256: str) -> str:
    return sha("key of " + sha256)


def source(path: str, state: str = "seen", content: str | None = None, **changes: object) -> Source:
    return replace(Source("d", path, 100, sha(content or path)), state=state, **changes)


def never_came(path: str, content: str | None = None) -> Source:
    return source(path, "quarantined", content, reason=DOWNLOAD_FAILED)


def receipt(path: str, state: str = "verified", content: str | None = None) -> Receipt:
    return Receipt("d", path, f"/landing/{path}", 100, sha(content or path), "c", "e", state)  # type: ignore[arg-type]


def situation(*things: Source | Receipt, **changes: object) -> Situation:
    sources = {each.path: each for each in things if isinstance(each, Source)}
    receipts = {each.path: each for each in things if isinstance(each, Receipt)}
    return replace(Situation(receipts, Catalog(sources), LIMITS, key_of=key_of), **changes)


def actions(now: Situation) -> tuple[Action, ...]:
    return decide(now, 100.0)


def demanded(now: Situation, *, most_missed: int = 5) -> Demand:
    paths = [path for path in now.sources if may_be_demanded(now.sources[path], now.receipts.get(path))]
    return demand_of(now, paths, most_missed=most_missed)


def unneeded(now: Situation) -> dict[str, Unneeded]:
    return dict(demanded(now).unneeded)


def missed(now: Situation) -> list[str]:
    return list(demanded(now).missed)


def on_warm(*contents: str) -> WarmContents:
    return WarmContents(answers=True, published=frozenset(key_of(sha(one))[:16] for one in contents))


class TestGivingUp:
    def test_a_file_that_was_given_up_before_it_came_is_quarantined(self) -> None:
        nothing_known = replace(receipt("a", "given_up"), sha256="", size=0)
        assert actions(situation(nothing_known)) == (Action("give_up", "a"),)
        assert actions(situation(source("a"), nothing_known)) == (Action("give_up", "a"),)
        assert actions(situation(source("a"), receipt("a", "given_up"))) == (Action("give_up", "a"),)

    def test_where_its_content_is_known_its_set_is_looked_for_first(self) -> None:
        assert actions(situation(receipt("a", "given_up"))) == (Action("restart", "a"),), (
            "a record to look with"
        )
        lost = situation(source("a"), receipt("a", "given_up"))
        assert actions(replace(lost, published={key_of(sha("a"))[:16]})) == (Action("prove", "a"),)
        assert actions(replace(lost, warm=on_warm("a"))) == (Action("recall", "a"),)
        assert actions(replace(lost, uncertain=True)) == (), "warm may have it"
        twin = situation(
            source("a"), receipt("a", "given_up"), source("b", "released", "a"), receipt("b", "released", "a")
        )
        assert actions(twin) == (Action("duplicate", "a", "b"),)

    @pytest.mark.parametrize(
        "state", ["staged", "building", "proven", "synced", "released", "quarantined", "duplicate"]
    )
    def test_what_is_further_on_its_way_goes_on(self, state: str) -> None:
        here = situation(source("a", state, reason="x"), source("b", "proven", "a"), receipt("a", "given_up"))
        assert Action("give_up", "a") not in actions(here)

    def test_one_beyond_the_slice_is_left_alone_and_one_that_is_worked_on_too(self) -> None:
        known, unknown = receipt("a", "given_up"), replace(receipt("a", "given_up"), sha256="")
        assert actions(situation(known, beyond=frozenset({"a"}))) == ()
        assert actions(situation(unknown, beyond=frozenset({"a"}))) == ()
        assert actions(situation(source("a"), known, beyond=frozenset({"a"}))) == ()
        assert actions(situation(source("a"), known, busy={"a": "prove"})) == ()

    def test_it_begins_anew_when_its_file_comes_after_all(self) -> None:
        assert actions(situation(never_came("a"), receipt("a"))) == (Action("restart", "a"),)
        assert actions(situation(never_came("a", ""), receipt("a"))) == (Action("restart", "a"),)
        for state in ("given_up", "disputed"):
            assert actions(situation(never_came("a"), receipt("a", state))) == (), "still on its way, or not"
        convicted = source("a", "quarantined", reason="page_corrupt")
        assert actions(situation(convicted, receipt("a"))) == (), "that one came, and was bad"

    def test_a_file_that_rotted_is_given_up_only_where_there_is_no_set_of_what_it_was(self) -> None:
        rotten = replace(receipt("a", "disputed"), found="f" * 64)
        assert actions(situation(source("a"), rotten)) == (Action("give_up", "a"),)
        assert actions(situation(rotten)) == (Action("restart", "a"),), "a record to look with"
        for state in ("staged", "proven", "synced", "released"):
            assert Action("give_up", "a") not in actions(situation(source("a", state), rotten))
        waits = source("a", "quarantined", reason=SOURCE_ROTTEN)
        assert actions(situation(waits, rotten)) == ()
        assert actions(situation(waits, receipt("a"))) == (Action("restart", "a"),)

    @pytest.mark.parametrize("state", ["verified", "unproven"])
    def test_what_is_here_is_staged_and_given_back_whether_proven_or_not(self, state: str) -> None:
        assert Action("stage", "a") in actions(situation(source("a"), receipt("a", state)))
        assert unneeded(situation(source("a", "released"), receipt("a", state))) == {
            "a": Unneeded(sha("a"), "a")
        }

    @pytest.mark.parametrize(
        ("known", "told", "expected"),
        [
            (None, receipt("a", "given_up"), True),
            (source("a"), receipt("a", "given_up"), True),
            (source("a", "proven"), receipt("a", "given_up"), False),
            (never_came("a"), receipt("a", "given_up"), False),
            (never_came("a"), receipt("a"), True),
            (source("a"), receipt("a"), False),
            (source("a"), None, False),
        ],
    )
    def test_it_is_among_the_few_paths_that_are_compared(
        self, known: Source | None, told: Receipt | None, expected: bool
    ) -> None:
        assert differs(known, told) is expected

    def test_many_of_unknown_content_are_no_duplicates_of_each_other(self) -> None:
        catalog = Catalog({path: replace(never_came(path), sha256="") for path in "abc"})
        assert catalog.with_content("") == ()
        catalog.put(replace(never_came("b"), sha256=""))
        catalog.drop("a")
        assert [one.path for one in catalog.in_state("quarantined")] == ["c", "b"]
        catalog.put(source("b"))
        assert catalog.with_content(sha("b")) == ("b",)

    def test_the_tokenizer_does_not_wait_for_it(self) -> None:
        listing = Listing("d", (("a", 100), ("b", 100)), complete=False, revision="c")
        waits = choose_training_set(listing, {"b": source("b", "staged")}, 100)
        assert waits.wanted == {"a"}
        goes_on = choose_training_set(listing, {"a": never_came("a"), "b": source("b", "staged")}, 100)
        assert (goes_on.files, goes_on.ready) == ((("b", sha("b")),), True)

    def test_there_is_nothing_to_look_at_again(self) -> None:
        bad = source("a", "quarantined", reason="page_corrupt")
        kept = QuarantineEntry(
            "parquet-a-1", "parquet", body={"path": "a", "sha256": sha("a"), "time": "2026-01-01T00:00:00Z"}
        )
        assert due((kept,), [bad], now=2e9, every=1.0) == [kept]
        assert due((kept,), [never_came("a")], now=2e9, every=1.0) == []

    def test_a_former_content_is_not_forsaken_while_a_file_of_it_may_come(self) -> None:
        former = source("a@1", "seen", "old", former="a")
        now = situation(source("a", "released"), receipt("a", "released"), former, never_came("b", "old"))
        assert actions(now) == ()


class TestGivingBack:
    def test_a_file_goes_once_its_source_is_released(self) -> None:
        for state in ("seen", "staged", "building", "proven", "synced", "quarantined"):
            assert unneeded(situation(source("a", state, reason="x"), receipt("a"))) == {}, state
        one = {"a": Unneeded(sha("a"), owner="a")}
        assert unneeded(situation(source("a", "released"), receipt("a"))) == one

    @pytest.mark.parametrize("state", ["releasing", "released", "disputed", "given_up"])
    def test_only_a_verified_one_goes(self, state: str) -> None:
        assert unneeded(situation(source("a", "released"), receipt("a", state))) == {}

    def test_none_goes_that_has_other_content_or_a_set_in_doubt_or_is_worked_on(self) -> None:
        assert unneeded(situation(source("a", "released"), receipt("a", content="new"))) == {}
        one = situation(source("a", "released"), receipt("a"))
        assert unneeded(replace(one, convicted={"a"})) == {}
        assert unneeded(replace(one, busy={"a": "sync"})) == {}
        assert unneeded(replace(one, limits=replace(LIMITS, release="never"))) == {}
        assert unneeded(situation(source("a", "released"))) == {}, "there is no receipt"

    def test_a_duplicates_file_goes_with_that_of_the_path_that_has_the_set(self) -> None:
        duplicate = (source("b", "duplicate", "a"), receipt("b", content="a"))
        for state in ("proven", "synced", "quarantined"):
            now = situation(source("a", state, reason="x"), receipt("a", "released"), *duplicate)
            assert unneeded(now) == {}, state
        now = situation(source("a", "released"), receipt("a", "released"), *duplicate)
        assert unneeded(now) == {"b": Unneeded(sha("a"), owner="a")}
        assert unneeded(replace(now, convicted={"a"})) == {}

    def test_so_many_are_asked_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.corpus.schedule.decide.MOST_UNNEEDED", 2)
        now = situation(*(source(path, "released") for path in "abcd"), *map(receipt, "abcd"))
        assert list(demanded(now).unneeded) == ["a", "b"]
        now = replace(now, receipts={**now.receipts, "a": receipt("a", "releasing")})
        assert list(demanded(now).unneeded) == ["b", "c"], "what came true gives way"


class TestMissing:
    lost = (source("a"), receipt("a", "released"))

    def test_a_file_that_was_removed_is_fetched_when_its_set_was_lost(self) -> None:
        assert demanded(situation(*self.lost)) == Demand(missed={"a": sha("a")})
        assert missed(situation(source("a"), receipt("a", "releasing"))) == ["a"]
        for state in ("verified", "disputed", "given_up"):
            assert missed(situation(source("a"), receipt("a", state))) == [], state

    def test_not_while_its_set_may_be_found(self) -> None:
        now = situation(*self.lost)
        assert missed(replace(now, uncertain=True)) == []
        assert missed(replace(now, warm=on_warm("a"))) == []
        assert missed(replace(now, published={key_of(sha("a"))[:16]})) == []
        assert missed(replace(now, busy={"a": "recall"})) == []
        assert missed(replace(now, key_of=None)) == []
        assert missed(replace(now, key_of=None, wanted=frozenset({"a"}))) == ["a"]

    def test_not_what_the_slice_or_the_list_of_files_leaves_out(self) -> None:
        assert missed(situation(*self.lost, beyond=frozenset({"a"}))) == []
        assert missed(situation(*self.lost, shelved=frozenset({"a"}))) == []

    def test_not_where_another_file_has_the_content(self) -> None:
        for state in ("staged", "building", "proven", "released"):
            other = situation(*self.lost, source("b", state, "a"), receipt("b", "released", "a"))
            assert missed(other) == [], state
        for state in ("seen", "duplicate"):
            here = situation(*self.lost, source("b", state, "a"), receipt("b", content="a"))
            assert missed(here) == [], state
            assert missed(replace(here, beyond=frozenset({"b"}))) == ["a"]
            gone = situation(*self.lost, source("b", state, "a"), receipt("b", "released", "a"))
            assert missed(gone) == ["a"], "one file of a content is enough"

    def test_a_duplicate_is_fetched_where_the_file_of_the_set_never_came_again(self) -> None:
        duplicate = (source("b", "duplicate", "a"), receipt("b", "released", "a"))
        assert missed(situation(never_came("a"), receipt("a", "given_up"), *duplicate)) == ["b"]
        bad = source("a", "quarantined", reason="page_corrupt")
        assert missed(situation(bad, receipt("a"), *duplicate)) == [], "it would be as bad"
        assert missed(situation(source("a", "released"), receipt("a", "released"), *duplicate)) == []

    def test_what_is_waited_for_comes_first_and_the_rest_in_order_of_the_listing(self) -> None:
        now = situation(*(source(path) for path in "abcd"), *(receipt(path, "released") for path in "abcd"))
        now = replace(now, urgent=frozenset({"d"}))
        assert list(demanded(now, most_missed=3).missed) == ["d", "a", "b"]

    def test_what_is_on_its_way_again_counts_among_those_that_are_asked_for(self) -> None:
        gone = receipt("b", "released"), receipt("c", "released")
        coming = situation(*(source(path) for path in "abc"), receipt("a", "disputed"), *gone)
        assert list(demanded(coming, most_missed=2).missed) == ["b"]

    def test_former_contents_and_imports_have_no_file(self) -> None:
        for nowhere in (source("a", former="x"), source("a", imported=True)):
            assert not may_be_demanded(nowhere, receipt("a", "released"))


def test_the_first_link_is_staged_whatever_the_room_where_it_takes_none() -> None:
    now = situation(source("a"), receipt("a"), source("b"), receipt("b"), limits=replace(LIMITS, stagers=2))
    room = Room(-1, lambda one: 10)
    assert actions(replace(now, rooms={"stage": room})) == ()
    first = replace(now, rooms={"stage": replace(room, first_goes=True)})
    assert actions(first) == (Action("stage", "a"),)
    unknown = replace(room, left=None, first_goes=True)
    assert actions(replace(first, rooms={"stage": unknown})) == (), "hot is not known"
