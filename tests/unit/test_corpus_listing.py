"""Mappings in path order, and what the listing's writer keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.corpus.records.by_path import by_path, first
from stoker.corpus.records.listing import Listing, read_listing, write_listing
from stoker.corpus.records.listing_writer import ListingBook, ListingHead
from stoker.store.layout import StateLayout
from stoker.store.record import read_record


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


class TestListingBook:
    FILES = (('a],"b', 1), ('\u00fc/"files":[', 2), *((f"n{number:05}", number) for number in range(2500)))

    @pytest.mark.parametrize("origin", ["", 'hub@"main"],"x'])
    def test_what_it_writes_is_the_record_that_everybody_reads(
        self, layout: StateLayout, origin: str
    ) -> None:
        book = ListingBook(layout, "d")
        assert book.head is None
        assert book.write(self.FILES, complete=True, revision="r", origin=origin)
        written = layout.listing("d").read_bytes()
        assert read_listing(layout, "d") == Listing("d", self.FILES, True, "r", origin)
        write_listing(layout, Listing("d", self.FILES, True, "r", origin))
        assert layout.listing("d").read_bytes() == written
        again = ListingBook(layout, "d")
        assert again.head == book.head == ListingHead(True, "r", origin, again.head.sum)
        assert tuple(again.files()) == self.FILES

    def test_only_another_one_is_written(self, layout: StateLayout) -> None:
        ListingBook(layout, "d").write((), complete=False, revision="")
        book = ListingBook(layout, "d")
        assert not book.write((), complete=False, revision="")
        assert list(book.files()) == []
        for about in ({"complete": True}, {"revision": "r"}, {"origin": "o"}):
            assert book.write((), **{"complete": False, "revision": "", **about})
        assert book.write((("a", 1),), complete=False, revision="")

    def test_a_damaged_one_is_none_and_one_in_another_form_is_read(self, layout: StateLayout) -> None:
        book, file = ListingBook(layout, "d"), layout.listing("d")
        book.write((("a", 1), ("b", 2)), complete=True, revision="r")
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b'"b",2', b'"b",3'))
        assert ListingBook(layout, "d").head is None
        file.write_bytes(whole.replace(b'"b",2', b'"b", 2'))
        assert read_record(file)["complete"]
        spaced = ListingBook(layout, "d")
        assert spaced.head == ListingHead(True, "r", "", "")
        assert list(spaced.files()) == [("a", 1), ("b", 2)]
