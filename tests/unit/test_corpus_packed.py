"""Packed mappings: what comes out is what went in, in path order; and what the listing's writer keeps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.corpus.arrivals import WATCHED, SeenCodec, Watched
from stoker.corpus.cells import ReceiptCodec, WantedCodec
from stoker.corpus.folder import FileSeen
from stoker.corpus.listing import Listing, read_listing, write_listing
from stoker.corpus.listing_book import ListingBook, ListingHead
from stoker.corpus.packed import Chosen, Packed
from stoker.corpus.receipts import Receipt
from stoker.corpus.wants import Wanted
from stoker.store.layout import StateLayout
from stoker.store.record import read_record

SHA, GIT = "ab" * 32, "cd" * 20
RECEIPT = Receipt("d", "a/b.parquet", "/x/a/b.parquet", 5, SHA, "c1", f"sha256:{SHA}", "verified")
ODD = (
    {"file": "/elsewhere"},  # from before the folder was moved by name
    {"sha256": SHA.upper()},
    {"etag": 'W/"5f"'},
    {"etag": "6-1-2"},  # not its size
    {"etag": "5-01-2"},
    {"size": -1},
    {"state": "disputed", "found": SHA},
)
EVEN = (
    {},
    {"state": "given_up", "sha256": "", "etag": f"git:{GIT}"},
    {"etag": f"url:{SHA}", "revision": ""},
    {"etag": "5-1700000000000000001-77", "revision": ""},
    {"etag": f"url:{SHA}", "revision": "", "state": "unproven"},
    {"etag": f"sha256:{'0' * 64}", "state": "disputed"},
)


@pytest.mark.parametrize("changes", [*ODD, *EVEN])
def test_a_receipt_comes_out_as_it_went_in(changes: dict[str, object]) -> None:
    receipt = replace(RECEIPT, **changes)
    packed = Packed(ReceiptCodec(), [(receipt.path, receipt)])
    assert packed[receipt.path] == receipt
    assert (ReceiptCodec().pack(receipt.path, receipt) is None) == (changes in ODD)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("a", None, f"git:{GIT}"),
        Wanted("a", 0, f"sha256:{SHA}"),
        Wanted("a", 2**40, f"url:{SHA}", "http://h/x?b"),
        Wanted("a", 1, "md5:11"),
    ],
)
def test_a_wish_comes_out_as_it_went_in(wanted: Wanted) -> None:
    assert Packed(WantedCodec(), [("a", wanted)])["a"] == wanted


@given(some.lists(some.tuples(some.sampled_from("abcdefgh"), some.integers(-1, 2**64 - 1))))
def test_it_is_a_dictionary_in_path_order_whatever_came_when(things: list[tuple[str, int]]) -> None:
    seen = [(path, FileSeen(path, size, 1, 2)) for path, size in things]
    half = len(seen) // 2
    packed = Packed(SeenCodec(), seen[:half])
    packed.extend(seen[half:])
    one_by_one = Packed(SeenCodec())
    for path, file in seen:
        one_by_one.put(path, file)
    whole = dict(sorted(dict(seen).items()))
    for each in (packed, one_by_one):
        assert list(each.items()) == list(whole.items())
        assert len(each) == len(whole)
        assert all(each.get(path) == whole.get(path) for path in "abcdefghi")
    assert packed == one_by_one
    assert dict(packed.first(2)) == dict(list(whole.items())[:2])


def test_two_of_them_differ_by_anything_in_a_cell() -> None:
    file = FileSeen("a", 1, 2, 3)
    assert Packed(WATCHED, [("a", Watched(file, 1.0))]) != Packed(WATCHED, [("a", Watched(file, 2.0))])
    assert Packed(WATCHED, [("a", Watched(file, 1.0))]) == {"a": Watched(file, 1.0)}


def test_a_path_is_kept_once() -> None:
    packed = Packed(SeenCodec(), [("a/b", FileSeen("a/b", 1, 1, 1))])
    again = "".join(["a/", "b"])
    assert packed.own(again) is next(iter(packed))
    assert packed.own("c") == "c"


def test_chosen_are_some_of_a_mapping_and_others_beside_it() -> None:
    chosen = Chosen({"a": 1, "b": 2, "c": 3}, ["c", "a"])
    chosen.put("z", 26)
    assert dict(chosen) == {"c": 3, "a": 1, "z": 26}
    chosen.drop("c")
    chosen.drop("z")
    chosen.drop("never")
    assert dict(chosen) == {"a": 1}
    assert "b" not in chosen


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


def test_many_are_sorted_as_a_dictionary_is() -> None:
    names = [f"{number}" for number in range(3000)]
    random.Random(1).shuffle(names)
    packed = Packed(SeenCodec(), ((name, FileSeen(name, int(name), 1, 1)) for name in names))
    assert [(path, file.size) for path, file in packed.items()] == sorted((name, int(name)) for name in names)
