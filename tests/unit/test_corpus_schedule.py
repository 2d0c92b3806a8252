"""The stage-shard loop's decisions, as tables."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.state import Action, Limits, Situation, WarmContents

LIMITS = Limits(stagers=2, builders=2, queue_files=3, queue_bytes=1000, release="after_proof")

KEEP = replace(LIMITS, release="never")


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def key_of(sha256: str) -> str:
    return sha("key of " + sha256)


def receipt(path: str, content: str | None = None, **changes: object) -> Receipt:
    plain = Receipt("d", path, f"/folder/{path}", 100, sha(content or path), "", "e", "verified")
    return replace(plain, **changes)


def source(path: str, state: str = "seen", content: str | None = None, **changes: object) -> Source:
    return replace(Source("d", path, 100, sha(content or path)), state=state, **changes)


def situation(*sources: Source, **changes: object) -> Situation:
    receipts = {
        each.path: Receipt(
            "d", each.path, f"/folder/{each.path}", each.size, each.sha256, "", "e", "verified"
        )
        for each in sources
    }
    plain = Situation(receipts, Catalog({each.path: each for each in sources}), LIMITS, key_of=key_of)
    return replace(plain, **changes)


def actions(situation: Situation, now: float = 100.0) -> tuple[Action, ...]:
    return decide(situation, now)


def test_a_new_receipt_becomes_a_source_before_anything_else_is_done() -> None:
    assert actions(situation(source("b"), receipts={"a": receipt("a"), "b": receipt("b")})) == (
        Action("restart", "a"),
    )


def test_a_file_whose_content_changed_is_started_anew_until_its_set_is_proven() -> None:
    for state in ("seen", "staged", "building", "quarantined", "duplicate"):
        now = situation(source("a", state), receipts={"a": receipt("a", "other")})
        assert actions(now) == (Action("restart", "a"),), state
    proven = source("a", "proven")
    receipts = {"a": receipt("a", "other")}
    assert actions(situation(proven, receipts=receipts)) == (Action("replace", "a"),)
    assert actions(situation(proven, receipts=receipts, busy={"a": "sync"})) == ()


def test_only_the_paths_that_may_differ_are_compared() -> None:
    changed = situation(source("a"), source("b"), receipts={"a": receipt("a", "x"), "b": receipt("b", "x")})
    assert actions(replace(changed, differing={"b"})) == (Action("restart", "b"),)
    assert Action("restart", "c") not in actions(replace(changed, differing={"c"}))


def test_a_former_content_without_a_set_is_given_up_only_when_nothing_can_bring_it_back() -> None:
    lost = source("a@1", "seen", "old", former="a")
    one = situation(source("a", "proven"), lost, receipts={"a": receipt("a")}, limits=KEEP)
    assert actions(one) == (Action("give_up_content", "a@1"),)
    assert actions(replace(one, uncertain=True)) == (), "warm may have it"
    there = WarmContents(answers=True, published=frozenset({key_of(sha("old"))[:16]}))
    assert actions(replace(one, warm=there)) == (Action("recall", "a@1"),)
    assert actions(replace(one, key_of=None)) == ()
    assert actions(replace(one, published=frozenset({key_of(sha("old"))[:16]}))) == (Action("prove", "a@1"),)
    for state, expected in (
        ("seen", (Action("stage", "b"),)),
        ("quarantined", (Action("give_up_content", "a@1"),)),
    ):
        twin = situation(source("b", state, "old"), lost, limits=KEEP)
        assert actions(replace(twin, receipts={"b": receipt("b", "old")})) == expected, state
    built = situation(source("b", "proven", "old"), lost, limits=KEEP)
    assert actions(replace(built, receipts={"b": receipt("b", "old")})) == (Action("duplicate", "a@1", "b"),)


def test_content_that_changes_back_is_a_duplicate_of_what_it_was() -> None:
    former = source("a@1", "released", "old", former="a")
    now = situation(source("a", "proven", "new"), former, receipts={"a": receipt("a", "old")}, limits=KEEP)
    assert actions(now) == (Action("replace", "a"),)
    renewed = situation(
        source("a", content="old"), former, source("a@2", "proven", "new", former="a"), limits=KEEP
    )
    assert actions(replace(renewed, receipts={"a": receipt("a", "old")})) == (
        Action("duplicate", "a", "a@1"),
    )


def test_a_small_file_does_not_overtake_one_that_waits_for_the_queue() -> None:
    sources = [source("a", "staged"), replace(source("b"), size=950), source("c")]
    assert not [each for each in actions(situation(*sources)) if each in (Action("stage", each.path),)]


def test_a_disputed_receipt_is_not_staged() -> None:
    now = situation(source("a"), receipts={"a": receipt("a", state="disputed")})
    assert actions(now) == ()


def test_staging_keeps_to_its_workers_and_to_the_queue_of_what_waits_for_a_builder() -> None:
    four = [source(name) for name in "abcd"]
    assert actions(situation(*four)) == (Action("stage", "a"), Action("stage", "b"))
    waiting = [source(name, "staged") for name in "xyz"]
    assert not [each for each in actions(situation(*four, *waiting)) if each in (Action("stage", each.path),)]
    big = [replace(source("a"), size=5000), source("b")]
    assert actions(situation(*big)) == (Action("stage", "a"),)  # one is always let in


def test_what_a_builder_has_in_hand_is_no_longer_ahead_of_it() -> None:
    builders = replace(LIMITS, builders=8)
    building = [source(name, "building") for name in "stuvwx"]
    busy = {each.path: "build" for each in building}
    now = situation(*building, source("a"), source("b"), busy=busy, limits=builders)
    assert [each for each in actions(now) if each in (Action("stage", each.path),)] == [
        Action("stage", "a"),
        Action("stage", "b"),
    ]
    assert not [each for each in actions(replace(now, busy={})) if each in (Action("stage", each.path),)]


def test_what_the_tokenizer_waits_for_is_staged_first_past_the_queue() -> None:
    waiting = [source(name, "staged") for name in "abc"]
    now = situation(*waiting, source("m"), source("z"), key_of=None, wanted=frozenset({"z"}))
    assert actions(now) == (Action("stage", "z"),)  # nothing is trained on it: a build decodes it anyway
    assert actions(replace(now, limits=replace(LIMITS))) == (Action("stage", "z"),)


def test_nothing_is_built_before_the_dataset_is_pinned() -> None:
    assert actions(situation(source("a", "staged"), key_of=None)) == ()


def test_an_interrupted_build_goes_before_a_new_one() -> None:
    sources = [source("a", "staged"), source("b", "staged"), source("c", "building")]
    assert actions(situation(*sources)) == (Action("build", "c"), Action("build", "a"))


def test_the_same_content_under_two_names_is_claimed_once() -> None:
    twins = [source("a", content="same"), source("b", content="same")]
    assert actions(situation(*twins)) == (Action("stage", "a"),)
    assert actions(situation(*twins, busy={"b": "stage"})) == ()
    staged = [source("a", "staged", "same"), source("b", "staged", "same")]
    assert actions(situation(*staged)) == (Action("build", "a"),)
    assert actions(situation(*staged, busy={"b": "build"})) == ()


def test_a_twin_becomes_a_duplicate_only_when_the_other_set_is_proven() -> None:
    building = [source("a", "building", "same"), source("b", content="same")]
    assert actions(situation(*building, busy={"a": "build"})) == ()
    proven = [source("a", "released", "same"), source("b", content="same")]
    assert actions(situation(*proven, published=frozenset({key_of(sha("same"))[:16]}))) == (
        Action("duplicate", "b", "a"),
    )


def test_a_duplicate_whose_original_lost_its_set_is_started_anew_and_built_where_the_original_is_gone() -> (
    None
):
    lost = [source("a", "seen", "same"), source("b", "duplicate", "same")]
    assert actions(situation(*lost)) == (Action("restart", "b"), Action("stage", "a"))
    anew = situation(lost[0], source("b", content="same"), not_before={"a": 200.0})
    assert actions(anew) == (Action("stage", "b"),)
    kept = [source("a", "released", "same"), source("b", "duplicate", "same")]
    assert actions(situation(*kept)) == ()


def test_a_quarantined_twin_makes_no_duplicate() -> None:
    now = situation(source("a", "quarantined", "same"), source("b", content="same"))
    assert actions(now) == (Action("stage", "b"),)


def test_a_set_that_lies_on_hot_is_proven_and_not_built_again() -> None:
    published = frozenset({key_of(sha("a"))[:16]})
    for state in ("seen", "staged", "building"):
        assert actions(situation(source("a", state), published=published)) == (Action("prove", "a"),), state


def test_a_finding_leads_to_quarantine_and_to_nothing_else() -> None:
    now = situation(source("a", "staged"), source("b", "staged"), convicted={"a", "b"})
    assert actions(now) == (Action("quarantine", "a"), Action("quarantine", "b"))
    assert actions(replace(now, busy={"a": "quarantine", "b": "quarantine"})) == ()


def test_a_proven_source_is_released_only_where_the_configuration_says_so() -> None:
    now = situation(source("a", "proven"))
    assert actions(now) == (Action("release", "a"),)
    assert actions(replace(now, limits=replace(LIMITS, release="never"))) == ()


def test_a_source_that_failed_waits_and_a_full_disk_pauses_its_activity() -> None:
    waits = situation(source("a"), not_before={"a": 101.0})
    assert actions(waits, 100.0) == ()
    assert actions(waits, 101.0) == (Action("stage", "a"),)
    full = situation(source("a"), source("b", "staged"), paused_until={"build": math.inf})
    assert actions(full) == (Action("stage", "a"),)
    assert actions(situation(source("a"), shelved=frozenset({"a"})), math.inf) == ()


def test_staged_files_that_are_left_alone_take_no_place_in_the_queue() -> None:
    staged = [source(path, "building") for path in ("a", "b", "c")]
    full = situation(*staged, source("d"), busy=dict.fromkeys(("a", "b", "c"), "prove"))
    assert actions(full) == ()
    assert actions(replace(full, shelved=frozenset({"a", "b"}))) == (Action("stage", "d"),)
