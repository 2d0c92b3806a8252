"""The catalog of sources and its sums, against what they would be if they were made anew each time."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import OPEN, PUBLISHED, Books, Source, SourceState

PATHS = ("a", "b", "c", "d", "e")
CONTENTS = ("1" * 64, "2" * 64, "3" * 64)
COUNTS = st.integers(0, 2**63)


def key_of(sha256: str) -> str:
    return hashlib.sha256(sha256.encode()).hexdigest()


@st.composite
def books(draw: st.DrawFn) -> dict[str, Any]:
    streams = {split: {"documents": draw(COUNTS), "tokens": draw(COUNTS)} for split in ("train", "val")}
    dropped = draw(st.dictionaries(st.sampled_from(("null", "min_chars", "language")), COUNTS))
    return {
        **dict.fromkeys(("rows", "documents", "chars", "tokens"), draw(COUNTS)),
        "dropped": dropped,
        **streams,
    }


@st.composite
def sources(draw: st.DrawFn) -> Source:
    state: SourceState = draw(st.sampled_from(get_args(SourceState)))
    content = draw(st.sampled_from(CONTENTS))
    plain = Source("d", draw(st.sampled_from(PATHS)), draw(st.integers(0, 99)), content, state)
    if state not in PUBLISHED:
        return replace(plain, former=draw(st.sampled_from((None, "x"))))
    evicted = draw(st.booleans())
    return replace(
        plain,
        key=key_of(content),
        books=draw(st.one_of(st.none(), books().map(Books.from_mapping))),
        evicted=evicted,
        evicting=draw(st.booleans()),
        on_warm=evicted or draw(st.booleans()),
        imported=draw(st.booleans()),
    )


@settings(max_examples=30, deadline=None)
@given(changes=st.lists(st.one_of(sources(), st.sampled_from(PATHS)), max_size=25))
def test_whatever_changes_it_says_what_one_made_anew_would(changes: list[Source | str]) -> None:
    kept = Catalog()
    kept.open_with(["0" * 16], key_of)  # from here on it knows the keys of what is open
    for change in changes:
        if isinstance(change, Source):
            kept.put(change)
        elif change in kept:
            kept.drop(change)
    anew = Catalog(kept)
    assert kept.sums == anew.sums
    assert kept.waiting == anew.waiting == sorted(p for p, one in kept.items() if one.state == "seen")
    for name in ("unsynced", "evicting", "formers", "imported"):
        assert set(getattr(kept, name)) == set(getattr(anew, name)), name
    for state in get_args(SourceState):
        assert {one.path for one in kept.in_state(state)} == {
            p for p, one in kept.items() if one.state == state
        }
    assert sorted(kept.unsettled) == sorted(anew.unsettled)
    keys = {key_of(content)[:16] for content in CONTENTS}
    # Of two records of one set either is named.
    assert {kept[path].key for path in kept.left_behind(keys)} == {
        anew[path].key for path in anew.left_behind(keys)
    }
    assert kept.open_with(keys, key_of) == anew.open_with(keys, key_of)
    for content in CONTENTS:
        same = sorted(path for path, one in kept.items() if one.sha256 == content)
        assert sorted(kept.with_content(content)) == same
        owner = kept.owner(content)
        assert (owner is None) == all(kept[path].state not in PUBLISHED for path in same)
        assert (kept.of_key(key_of(content)[:16]) is None) == (owner is None)
        open_ = [path for path in same if kept[path].state in OPEN] if owner is None else []
        assert kept.open_with([key_of(content)[:16]], key_of) == open_


def test_what_lies_on_a_disk_is_held_against_the_records() -> None:
    here = Source("d", "a", 1, CONTENTS[0], "proven", key=key_of(CONTENTS[0]))
    key = here.key16
    catalog = Catalog({"a": here})
    assert (catalog.open_with({key}, key_of), catalog.left_behind({key})) == ([], [])
    catalog.put(replace(here, evicted=True))
    assert (catalog.left_behind({key}), catalog.left_behind({"b" * 16})) == (["a"], [])
    catalog.put(replace(here, state="seen", key=None))
    assert (catalog.open_with({key, "b" * 16}, key_of), catalog.left_behind({key})) == (["a"], [])


@given(body=books())
def test_books_go_into_a_record_as_they_came(body: dict[str, Any]) -> None:
    assert Books.from_mapping(body).to_mapping() == body
