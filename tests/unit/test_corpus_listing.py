"""Mappings in path order, and what the listing's writer keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.corpus.records.by_path import by_path, first
from stoker.corpus.records.listing import Listing, ListingWriter, read_listing
from stoker.store.layout import StateLayout


@given(some.lists(some.tuples(some.sampled_from("abcdefgh"), some.integers())))
def test_things_are_in_path_order_whatever_came_when_and_the_last_of_a_path_counts(
    things: list[tuple[str, int]],
) -> None:
    made = by_path(things)
    assert made == dict(things) and list(made) == sorted(made)
    assert list(first(made, 2).items()) == list(made.items())[:2]
    assert first(made, None) is made


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path / "state")
    layout.create()
    return layout


class TestListingWriter:
    LISTING = Listing("d", (("a", 1), ("\u00fc", 2)), True, "r", "o")

    def test_only_another_one_is_written_also_after_a_restart(self, layout: StateLayout) -> None:
        writer = ListingWriter(layout, "d")
        assert writer.head is None
        assert writer.write(self.LISTING)
        for each in (writer, ListingWriter(layout, "d")):
            assert each.head == replace(self.LISTING, files=())
            assert each.read() == self.LISTING
            assert not each.write(self.LISTING)
        for change in ({"complete": False}, {"revision": "s"}, {"origin": "p"}, {"files": (("a", 2),)}):
            assert writer.write(replace(self.LISTING, **change))
            assert read_listing(layout, "d") == replace(self.LISTING, **change)

    def test_a_damaged_one_is_none_and_is_written_again(self, layout: StateLayout) -> None:
        file = layout.listing("d")
        ListingWriter(layout, "d").write(self.LISTING)
        file.write_bytes(file.read_bytes().replace(b'"a",1', b'"a",3'))
        writer = ListingWriter(layout, "d")
        assert writer.head is None
        assert writer.write(self.LISTING) and read_listing(layout, "d") == self.LISTING
