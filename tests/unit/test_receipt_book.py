"""What the download watchdog keeps of its receipts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.store.layout import StateLayout
from stokerd.download.receipt_store import ReceiptBook

RECEIPT = Receipt("d", "a", "/l/a", 10, "ab" * 32, "", f"sha256:{'ab' * 32}", "verified")


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path / "state")
    layout.create()
    return layout


def book_of(layout: StateLayout, events: list[str]) -> ReceiptBook:
    record = SimpleNamespace(record=lambda word, **_: events.append(word))
    dataset = SimpleNamespace(dataset=SimpleNamespace(name="d"))
    context: Any = SimpleNamespace(layout=layout, events=record, pipeline=dataset)
    return ReceiptBook(context)


def test_bytes_and_rare_states_follow_each_receipt_and_a_restart_finds_the_same(layout: StateLayout) -> None:
    book = book_of(layout, [])
    written: list[Receipt] = []
    book.on_write = written.append
    steps = [("a", "verified", 10, []), ("b", "verified", 30, []), ("a", "disputed", 20, ["a"])]
    steps += [("b", "disputed", 0, ["a", "b"]), ("a", "verified", 10, ["b"])]
    for path, state, held, disputed in steps:
        size = 10 if path == "a" else 20
        book.write(replace(RECEIPT, path=path, file=f"/l/{path}", size=size, state=state))
        for each in (book, book_of(layout, [])):
            assert each.verified_bytes == held
            assert each.in_state("disputed") == disputed
            assert each.receipts == book.receipts
    assert [receipt.path for receipt in written] == ["a", "b", "a", "b", "a"]
    assert book.in_state("releasing") == []


def test_a_copied_record_makes_nobody_release_what_is_verified(layout: StateLayout) -> None:
    file = layout.receipt("d", "a")
    for first, last in (("verified", "releasing"), ("releasing", "verified")):
        write_receipt(layout, replace(RECEIPT, state=first))
        shutil.copy(file, file.with_name("copy-000000000000.json"))
        write_receipt(layout, replace(RECEIPT, state=last))
        book = book_of(layout, [])
        assert book.in_state("releasing") == [
            path for path, each in book.receipts.items() if each.state == "releasing"
        ]


def test_a_damaged_one_is_moved_aside_and_told(layout: StateLayout) -> None:
    write_receipt(layout, RECEIPT)
    file = layout.receipt("d", "a")
    file.write_bytes(file.read_bytes().replace(b'"size":10', b'"size":11'))
    events: list[str] = []
    assert len(book_of(layout, events).receipts) == 0
    assert events == ["record_damaged"]
    assert not file.exists()
