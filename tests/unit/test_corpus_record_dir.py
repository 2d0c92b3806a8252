"""A folder of records read again and again: what changed is opened and nothing else, and none is missed."""

from __future__ import annotations

import errno
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.corpus.records import record_dir
from stoker.corpus.records.receipts import Listing, Receipt, listing_reader, write_listing, write_receipt
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import Source, read_sources, write_source
from stoker.store.errors import StorageError
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, parse_record
from support.books import books_of

PLAIN = Receipt("d", "a", "/f/a", 5, "0" * 64, "", "e", "verified")


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    made = StateLayout(tmp_path / "state")
    made.create()
    return made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the records that were opened."""
    names: list[str] = []
    read = record_dir._read

    def noting(folder: int, name: str) -> tuple[bytes, int]:
        names.append(name)
        return read(folder, name)

    monkeypatch.setattr(record_dir, "_read", noting)
    return names


def put(layout: StateLayout, *paths: str, **changes: object) -> None:
    for path in paths:
        write_receipt(layout, replace(PLAIN, path=path, **changes))


def at_rest(layout: StateLayout) -> None:
    """As if the folder had not changed for a while."""
    about = layout.receipts.stat()
    os.utime(layout.receipts, ns=(about.st_atime_ns, about.st_mtime_ns - record_dir.SECONDS_NS * 2))


def test_records_come_change_and_go(layout: StateLayout) -> None:
    records = RecordDir(layout.receipts, "d", Receipt.from_record)
    assert records.read() == {}
    put(layout, "b", "c")
    write_receipt(layout, replace(PLAIN, dataset="other", path="z"))
    assert set(records.read()) == {"b", "c"}
    assert records.take_changed() == {"b", "c"}
    put(layout, "a")
    put(layout, "c", etag="new")
    found = records.read()
    assert set(found) == {"a", "b", "c"}
    assert (found["c"].etag, records.take_changed()) == ("new", {"a", "c"})
    layout.receipt("d", "b").unlink()
    assert set(records.read()) == {"a", "c"}
    assert records.take_changed() == {"b"}
    for file in layout.receipts.glob("*.json"):
        file.unlink()
    (layout.receipts / "listings").rmdir()
    layout.receipts.rmdir()
    assert records.read() == {}
    assert records.take_changed() == {"a", "c"}


def test_a_folder_at_rest_is_not_looked_through(layout: StateLayout, opened: list[str]) -> None:
    put(layout, "a", "b")
    records = RecordDir(layout.receipts, "d", Receipt.from_record)
    records.read()
    at_rest(layout)
    records.read()
    assert (len(opened), records.due) == (2, math.inf)
    file = layout.receipt("d", "a")
    file.write_bytes(b"{}")  # in place, as no writer of records does: the folder does not show it
    assert set(records.read()) == {"a", "b"}
    put(layout, "c")
    assert set(records.read()) == {"b", "c"}
    assert records.due < math.inf, "another change within the same tick of the clock would not show"


def test_a_damaged_record_is_left_out_and_comes_back_when_it_is_mended(layout: StateLayout) -> None:
    put(layout, "a", "b")
    records = RecordDir(layout.receipts, "d", Receipt.from_record)
    before = records.read()["b"]
    file = layout.receipt("d", "a")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"size":5', b'"size":6'))
    assert records.read() == {"b": before}
    file.write_bytes(whole)
    assert set(records.read()) == {"a", "b"}


def test_what_could_not_be_read_is_read_at_the_next_look(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(layout, "a", "b")
    at_rest(layout)
    records = RecordDir(layout.receipts, "d", Receipt.from_record)

    def broken(*_: object) -> tuple[bytes, int]:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(record_dir, "_read", broken)
        records.read()
    assert set(records.read()) == {"a", "b"}


class TestPatience:
    @pytest.fixture
    def patient(self, layout: StateLayout) -> RecordDir[Receipt]:
        return RecordDir(layout.receipts, "d", Receipt.from_record, patient=True)

    def test_it_does_not_look_more_often_than_it_may_and_knows_when_it_may(
        self, layout: StateLayout, patient: RecordDir[Receipt]
    ) -> None:
        put(layout, "a")
        patient.read()
        patient._next_look = time.monotonic() + 1000.0  # as if the last look had taken long
        put(layout, "b")
        assert set(patient.read()) == {"a"}
        assert patient.due == patient._next_look
        patient._next_look = 0.0
        assert set(patient.read()) == {"a", "b"}

    def test_thousands_are_read_slice_by_slice_and_one_that_is_asked_for_at_once(
        self,
        layout: StateLayout,
        patient: RecordDir[Receipt],
        opened: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(record_dir, "SLICE", 2)
        put(layout, *"gfedcba")
        found = patient.read()
        assert (len(found), patient.behind, len(opened)) == (2, True, 2)
        assert patient.due < time.monotonic()
        missing = next(path for path in "abcdefg" if path not in found)
        asked = found.get(missing)
        assert asked is not None
        assert (found[missing], found.get("z"), len(opened)) == (asked, None, 3)
        while patient.behind:
            found = patient.read()
        assert set(found) == set("abcdefg")
        assert found[missing] is asked, "it was not read twice"
        assert (len(opened), patient.take_changed()) == (7, set("abcdefg"))
        put(layout, "a", etag="new")
        patient._next_look = 0.0
        assert patient.read()["a"].etag == "new"
        assert len(opened) == 8


def test_sources_read_back_with_every_field(layout: StateLayout) -> None:
    source = Source(
        "d",
        "dir/ü.parquet@0123456789ab",
        7,
        "1" * 64,
        "proven",
        key="2" * 64,
        attempts=2,
        reason="why",
        books=books_of(5, 3, documents=2, rows=3, dropped={"null": 1}),
        evicted=True,
        manifest_sha256="3" * 64,
        deaths=(1, 1),
        column="text",
        evicting=True,
        on_warm=True,
        engine="fastokens",
        imported=True,
        former="dir/ü.parquet",
        formers=(("4" * 64, 5),),
    )
    write_source(layout, source)
    assert read_sources(layout, "d") == {source.path: source}


def test_a_record_is_what_was_summed_and_nothing_behind_it() -> None:
    whole = b'{"a":1,"sum":"e891bc0dd4260d3b","v":1}\n'
    assert parse_record(whole, "r") == {"a": 1, "v": 1}
    assert parse_record(b' {"v":1, "sum":"e891bc0dd4260d3b", "a":1}', "r") == {"a": 1, "v": 1}, "in any form"
    for broken, why in (
        (whole.replace(b"e89", b"e88"), "sums to"),
        (whole.replace(b'"a":1', b'"a":2'), "sums to"),
        (whole + b"x", "not JSON"),
        (whole + b'{"v":1}', "not JSON"),
        (b"\xff" + whole, "not JSON"),
        (b"[]", "no record"),
    ):
        with pytest.raises(RecordDamaged, match=why):
            parse_record(broken, "r")


def test_the_listing_is_parsed_again_only_after_it_changed(layout: StateLayout) -> None:
    reader = listing_reader(layout, "d")
    assert reader() is None
    write_listing(layout, Listing("d", (("a", 1),), complete=False, revision=""))
    first = reader()
    assert first is not None
    assert reader() is first
    write_listing(layout, Listing("d", (("a", 1), ("b", 2)), complete=True, revision=""))
    assert [path for path, _ in (reader() or first).files] == ["a", "b"]
    layout.listing("d").unlink()
    assert reader() is None
