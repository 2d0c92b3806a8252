"""One shard set, one owner: of two files with the same content only one is in anybody's hands."""

from __future__ import annotations

from dataclasses import replace

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.state import Action, Limits, Situation, WarmContents

LIMITS = Limits(stagers=2, builders=2, queue_files=3, queue_bytes=1000, release="never")
ONE, OTHER = (Source("d", path, 100, "a" * 64) for path in ("one", "other"))
KEY = "b" * 64
PUBLISHED = frozenset({KEY[:16]})


def situation(**changes: object) -> Situation:
    plain = Situation(
        {}, Catalog({"one": ONE, "other": OTHER}), LIMITS, key_of=lambda _: KEY, published=PUBLISHED
    )
    return replace(plain, **changes)


def test_a_set_without_a_record_is_proven_for_one_of_its_files() -> None:
    assert decide(situation(), 0.0) == (Action("prove", "one"),)
    assert decide(situation(not_before={"one": 5.0}), 0.0) == (Action("prove", "other"),)


def test_while_it_is_proven_for_one_it_is_not_proven_for_the_other() -> None:
    for busy, waiting in (("one", "other"), ("other", "one")):
        assert decide(situation(busy={busy: "prove"}), 0.0) == ()
        assert decide(situation(busy={busy: "prove"}, not_before={waiting: 5.0}), 9.0) == ()


def test_nor_is_it_taken_from_warm_for_both() -> None:
    away = situation(published=frozenset())
    away = replace(away, warm=WarmContents(answers=True, published=situation().published))
    assert decide(away, 0.0) == (Action("recall", "one"),)
    assert decide(replace(away, busy={"one": "recall"}), 0.0) == ()


def test_what_was_begun_for_the_other_is_given_up_once_the_set_is_there() -> None:
    """Its worker may publish the set and be killed before it says so; then it is proven for another file."""
    proven = ONE.moved("proven", key=KEY)
    for state in ("seen", "staged", "building"):
        other = replace(OTHER, state=state, key=KEY)
        begun = situation(sources=Catalog({"one": proven, "other": other}))
        assert decide(begun, 0.0) == (Action("duplicate", "other", "one"),), state
        assert decide(replace(begun, busy={"other": "build"}), 0.0) == (), state
        assert other.moved("duplicate").state == "duplicate"  # a step that there is
