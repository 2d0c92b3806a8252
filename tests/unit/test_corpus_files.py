"""Records, staging, preflight and quarantine on real files, and in every state a crash may leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crash import Crash, check_crashes
from stoker.corpus.quarantine import directory as quarantine_directory
from stoker.corpus.quarantine import quarantine_worker
from stoker.corpus.quarantine.directory import mark
from stoker.corpus.quarantine.quarantine_worker import NO_ROOM, TOO_LARGE, quarantine
from stoker.corpus.readers.parquet import preflight
from stoker.corpus.records.receipts import (
    Listing,
    Receipt,
    read_listing,
    read_receipts,
    write_listing,
    write_receipt,
)
from stoker.corpus.records.sources import Source, read_sources, write_source
from stoker.store import direct
from stoker.store.direct import DiskFullError
from stoker.store.errors import UnknownFormat
from stoker.store.layout import StateLayout
from stoker.store.record import read_record, write_record
from support.books import books_of
from support.parquet import flip_page, truncate, write_columns, write_fineweb

RECEIPT = Receipt("d", "a/b.parquet", "/f/a/b.parquet", 5, "0" * 64, "", "5-1-1", "verified")


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    made = StateLayout(tmp_path / "state")
    made.create()
    return made


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestRecords:
    def test_receipts_sources_and_the_listing_read_back_as_written(self, layout: StateLayout) -> None:
        write_receipt(layout, RECEIPT)
        write_receipt(layout, Receipt("other", "x", "/x", 1, "1" * 64, "", "e", "verified"))
        source = Source(
            "d", "a/b.parquet", 5, "0" * 64, "building", "k" * 64, 2, "why", books_of(rows=3), deaths=(1, 1)
        )
        write_source(layout, source)
        listing = Listing("d", (("a/b.parquet", 5),), complete=True, revision="")
        write_listing(layout, listing)
        assert read_receipts(layout, "d") == {"a/b.parquet": RECEIPT}
        assert read_sources(layout, "d") == {"a/b.parquet": source}
        assert read_listing(layout, "d") == listing
        assert read_listing(layout, "nothing") is None
        file = layout.listing("d")
        file.write_bytes(file.read_bytes().replace(b'"complete":true', b'"complete":null'))
        assert read_listing(layout, "d") is None, "a damaged one: the next scan writes it again"

    def test_a_damaged_record_is_left_out_and_handed_to_its_owner(self, layout: StateLayout) -> None:
        write_receipt(layout, RECEIPT)
        file = layout.receipt("d", RECEIPT.path)
        file.write_bytes(file.read_bytes().replace(b'"size":5', b'"size":6'))
        found: list[Path] = []
        assert read_receipts(layout, "d", lambda path, error: found.append(path)) == {}
        assert found == [file]

    def test_a_record_of_another_version_is_refused_and_not_called_damaged(self, layout: StateLayout) -> None:
        write_record(layout.receipt("d", "x"), {**RECEIPT.to_record(), "path": "x", "v": 2})
        with pytest.raises(UnknownFormat, match="version 2"):
            read_receipts(layout, "d")


def plain_table(rows: int = 4, **columns: pa.Array) -> pa.Table:
    return pa.table({"text": pa.array([f"text {number}" for number in range(rows)]), **columns})


class TestPreflight:
    def test_a_good_file_has_no_flaw_also_when_decoded(self, tmp_path: Path) -> None:
        file = write_fineweb(tmp_path / "a.parquet", 120)
        assert preflight(file, "text", {"language": "text", "language_score": "number"}, decode=True) is None

    @pytest.mark.parametrize(
        "column",
        [
            pa.array(["a", "b"], pa.large_string()),
            pa.array(["a", "b"], pa.string_view()),
            pa.array(["a", "b", None]).dictionary_encode(),
            pa.array([b"a", b"b"], pa.large_binary()),
        ],
    )
    def test_text_may_come_in_any_string_type(self, tmp_path: Path, column: pa.Array) -> None:
        assert preflight(write_columns(tmp_path / "a.parquet", text=column), "text", decode=True) is None

    def test_each_kind_of_bad_file_has_its_own_reason(self, tmp_path: Path) -> None:
        def made(name: str, data: bytes) -> Path:
            (tmp_path / name).write_bytes(data)
            return tmp_path / name

        good = write_fineweb(tmp_path / "good.parquet", 60).read_bytes()
        footer = bytearray(good)
        begin = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
        footer[begin : begin + 40] = b"\xff" * 40
        cases = {
            "zero_bytes": made("zero", b""),
            "not_parquet": made("text", b"This is a README, not parquet at all.\n"),
            "truncated": truncate(made("cut", good)),
            "encrypted": made("encrypted", b"PARE" + good[4:-4] + b"PARE"),
            "footer_corrupt": made("footer", bytes(footer)),
            "no_rows": write_columns(tmp_path / "none", text=pa.array([], pa.string())),
            "missing_column": write_columns(tmp_path / "wrong", content=pa.array(["a"])),
            "column_type": write_columns(tmp_path / "number", text=pa.array([1, 2])),
        }
        found = {file.name: preflight(file, "text") for file in cases.values()}
        assert {name: flaw and flaw.reason for name, flaw in found.items()} == {
            file.name: reason for reason, file in cases.items()
        }

    def test_a_column_that_a_filter_needs_must_be_there(self, tmp_path: Path) -> None:
        flaw = preflight(
            write_columns(tmp_path / "a", text=pa.array(["a"])), "text", {"language_score": "number"}
        )
        assert flaw is not None
        assert (flaw.reason, flaw.column) == ("missing_column", "language_score")

    def test_a_corrupt_page_is_found_by_decoding_with_its_row_group(self, tmp_path: Path) -> None:
        file = flip_page(write_fineweb(tmp_path / "a.parquet", 200, row_group=50), row_group=2)
        assert preflight(file, "text") is None
        flaw = preflight(file, "text", decode=True)
        assert flaw is not None
        assert (flaw.reason, flaw.row_group, flaw.column) == ("page_corrupt", 2, "text")

    def test_text_that_is_not_utf8_is_found_by_decoding(self, tmp_path: Path) -> None:
        bad = pa.array([b"good", b"\xff\xfe"], pa.binary()).view(pa.string())
        flaw = preflight(write_columns(tmp_path / "a", text=bad), "text", decode=True)
        assert flaw is not None
        assert flaw.reason == "invalid_utf8"

    def test_every_single_damaged_byte_of_the_footer_is_judged_without_a_crash(self, tmp_path: Path) -> None:
        file = tmp_path / "a.parquet"
        pq.write_table(plain_table(), file)
        good = file.read_bytes()
        for place in range(len(good) - 400, len(good), 7):
            data = bytearray(good)
            data[place] ^= 0xFF
            file.write_bytes(data)
            preflight(file, "text", decode=True)


def _no_link(*_: Any, **__: Any) -> None:
    raise OSError(18, "Invalid cross-device link")


FINDING = {
    "path": "a.parquet",
    "sha256": "0" * 64,
    "reason": "page_corrupt",
    "row_group": 3,
    "column": "text",
}


class TestQuarantine:
    def put(self, root: Path, name: str = "a-1", data: bytes = b"bad", budget: int = 1000) -> Path:
        thing = root / "hot" / f"{name}.parquet"
        if not (root / "quarantine").exists() or not list((root / "quarantine").glob(f"*/{thing.name}")):
            thing.parent.mkdir(parents=True, exist_ok=True)
            thing.write_bytes(data)
        reason = {**FINDING, "path": name}
        return quarantine(root / "quarantine", "parquet", name, thing, reason, budget_bytes=budget)

    def test_the_thing_lies_beside_its_reason_and_twice_is_once(self, tmp_path: Path) -> None:
        folder = self.put(tmp_path)
        assert self.put(tmp_path) == folder
        assert not (tmp_path / "hot" / "a-1.parquet").exists()
        assert (folder / "a-1.parquet").read_bytes() == b"bad"
        reason = read_record(folder / "reason.json")
        assert {**reason, **FINDING, "path": "a-1", "kind": "parquet", "v": 1} == reason
        assert len(_names(tmp_path / "quarantine")) == 1

    def test_a_file_that_has_another_name_in_the_users_folder_is_copied_so_that_a_repair_leaves_the_evidence(
        self, tmp_path: Path
    ) -> None:
        users, linked = tmp_path / "a-1.parquet", tmp_path / "hot" / "a-1.parquet"
        users.write_bytes(b"bad")
        linked.parent.mkdir()
        linked.hardlink_to(users)  # as staging does on one file system
        reason = {**FINDING, "path": "a-1"}
        folder = quarantine(tmp_path / "q", "parquet", "a-1", linked, reason, budget_bytes=1000)
        users.write_bytes(b"good")
        assert (folder / "a-1.parquet").read_bytes() == b"bad"
        assert _names(folder) == ["a-1.parquet", "reason.json"] and not linked.exists()

    def test_what_is_over_the_budget_by_itself_is_given_up_and_its_reason_says_so(
        self, tmp_path: Path
    ) -> None:
        huge = self.put(tmp_path, "huge", bytes(4000), budget=1500)
        assert _names(huge) == ["reason.json"]
        assert not (tmp_path / "hot" / "huge.parquet").exists()
        assert read_record(huge / "reason.json")["dropping"] == {"why": TOO_LARGE, "bytes": 4000}

    def test_without_room_beside_the_state_the_thing_is_given_up_and_its_reason_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: Path, target: Path, progress: Any) -> None:
            target.with_name(f".tmp-{target.name}").write_bytes(b"some of it")
            raise DiskFullError(str(target))

        monkeypatch.setattr(quarantine_worker, "move", full)
        folder = self.put(tmp_path)
        assert _names(folder) == ["reason.json"]
        assert not (tmp_path / "hot" / "a-1.parquet").exists()
        assert read_record(folder / "reason.json")["dropping"] == {"why": NO_ROOM, "bytes": 3}

    def test_a_released_finding_is_not_gone_on_with(self, tmp_path: Path) -> None:
        first = self.put(tmp_path)
        mark(first, released={"time": "2026-11-20T12:00:00Z", "why": "x", "told": True})
        (first / "a-1.parquet").unlink()
        second = self.put(tmp_path)
        assert second != first
        assert (second / "a-1.parquet").read_bytes() == b"bad"
        assert "released" in read_record(first / "reason.json")

    def test_a_folder_from_another_file_system_is_moved_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = direct.move_durably

        def across(source: Path, target: Path) -> None:
            if not source.name.startswith(".tmp-"):
                _no_link()
            real(source, target)

        monkeypatch.setattr(direct, "move_durably", across)
        thing = tmp_path / "set"
        thing.mkdir()
        (thing / "manifest.json").write_bytes(b"{}")
        folder = quarantine(
            tmp_path / "quarantine", "shards", "a-1", thing, {"reason": "x"}, budget_bytes=1 << 20
        )
        assert (folder / "set" / "manifest.json").read_bytes() == b"{}"
        assert not thing.exists()

    @pytest.mark.parametrize("across", [False, True])
    def test_no_crash_loses_the_thing_or_its_reason(
        self, across: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = direct.move_durably

        def move_durably(source: Path, target: Path) -> None:
            if across and not source.name.startswith(".tmp-"):
                _no_link()
            real(source, target)

        monkeypatch.setattr(direct, "move_durably", move_durably)
        monkeypatch.setattr(quarantine_directory, "utc_now", lambda: "2026-11-20T12:00:00Z")

        def prepare(root: Path) -> None:
            (root / "quarantine").mkdir()
            (root / "hot").mkdir()
            (root / "hot" / "a-1.parquet").write_bytes(b"bad")

        def again(root: Path) -> None:
            thing = root / "hot" / "a-1.parquet"
            quarantine(root / "quarantine", "parquet", "a-1", thing, FINDING, budget_bytes=1000)

        def invariant(root: Path, crash: Crash) -> None:
            (folder,) = (root / "quarantine").iterdir()
            assert (folder / "a-1.parquet").read_bytes() == b"bad"
            assert json.loads((folder / "reason.json").read_bytes())["reason"] == "page_corrupt"
            assert not (root / "hot" / "a-1.parquet").exists()

        check_crashes(again, again, invariant, prepare=prepare, max_states=600)
