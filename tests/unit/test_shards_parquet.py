"""Reading parquet: the same rows from anywhere, and who is to blame when a page does not decode."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.corpus.preflight import preflight
from stoker.shards.filters import make_filters, select
from stoker.shards.identity import Filters
from stoker.shards.parquet import BadParquet, ParquetText
from stoker.shards.past_cache import PastCacheFile
from stoker.store.errors import StorageError, Transient
from support.text import damage_page, documents, write_parquet

TEXTS = documents(350)
TEXT_TYPES = [
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "a.parquet", TEXTS)


def read(path: Path, row_group: int = 0, row: int = 0, read_rows: int = 30) -> list[str | None]:
    batches = ParquetText(path, "text", ("language",), read_rows).batches(row_group, row)
    return [text for batch in batches for text in batch.texts]


@pytest.mark.parametrize(("row_group", "row"), [(0, 0), (0, 1), (1, 30), (1, 99), (2, 0), (3, 49), (4, 0)])
@pytest.mark.parametrize("read_rows", [7, 100, 1000])
def test_reading_can_begin_at_any_row_whatever_the_batch_size(
    parquet: Path, row_group: int, row: int, read_rows: int
) -> None:
    assert read(parquet, row_group, row, read_rows) == TEXTS[row_group * 100 + row :]


def test_each_batch_knows_its_place(parquet: Path) -> None:
    places = [
        (batch.row_group, batch.row, batch.rows)
        for batch in ParquetText(parquet, "text", (), 60).batches(2, 70)
    ]
    assert places == [(2, 70, 30), (3, 0, 50)]


def test_a_damaged_page_is_convicted_with_its_row_group_and_column(parquet: Path) -> None:
    damage_page(parquet, 2)
    with pytest.raises(BadParquet) as caught:
        read(parquet)
    assert caught.value.fields()["reason"] == "page_corrupt"
    assert (caught.value.row_group, caught.value.column) == (2, "text")
    assert caught.value.detail


def test_damage_in_a_column_that_is_filtered_by_names_that_column(parquet: Path) -> None:
    damage_page(parquet, 1, "language")
    with pytest.raises(BadParquet) as caught:
        read(parquet)
    assert (caught.value.row_group, caught.value.column) == (1, "language")


def test_damage_in_a_column_nobody_reads_harms_nobody(parquet: Path) -> None:
    damage_page(parquet, 1, "id")
    assert read(parquet) == TEXTS


def test_what_only_the_first_reading_saw_convicts_nothing(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ParquetText(parquet, "text")
    whole = source._decode

    def once_wrong(file: pq.ParquetFile, group: int, columns: list[str]):  # type: ignore[no-untyped-def]
        if file is source._file and group == 1:
            raise pa.ArrowInvalid("a bit fell over in memory")
        yield from whole(file, group, columns)

    monkeypatch.setattr(source, "_decode", once_wrong)
    with pytest.raises(Transient, match="row group 1 did not decode"):
        list(source.batches())


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_not_the_files_fault(
    parquet: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    damage_page(parquet, 0)

    def fail(self: PastCacheFile, target: object) -> int:
        raise OSError(number, "gone")

    monkeypatch.setattr(PastCacheFile, "readinto", fail)
    with pytest.raises(StorageError) as caught:
        read(parquet)
    assert caught.value.errno == number


def test_a_file_that_vanished_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        ParquetText(tmp_path / "gone.parquet", "text")


def test_a_footer_that_does_not_parse_is_convicted(parquet: Path) -> None:
    parquet.write_bytes(parquet.read_bytes()[:-100])
    with pytest.raises(BadParquet, match="footer_corrupt"):
        ParquetText(parquet, "text")


def test_a_missing_or_unsuitable_column_is_named(parquet: Path) -> None:
    with pytest.raises(BadParquet, match=r"missing_column.*'content'"):
        ParquetText(parquet, "content")
    with pytest.raises(BadParquet, match=r"missing_column.*'score'"):
        ParquetText(parquet, "text", ("score",))
    with pytest.raises(BadParquet, match="column_type"):
        ParquetText(parquet, "language_score")


def test_bytes_that_are_no_utf8_are_convicted_with_the_row_group(tmp_path: Path) -> None:
    good, bad = [b"text"] * 50, [b"text", b"\xff\xfe"]
    table = pa.table({"text": pa.array(good + bad, pa.binary())})
    path = tmp_path / "bytes.parquet"
    pq.write_table(table, path, row_group_size=50)
    with pytest.raises(BadParquet) as caught:
        read_plain(path)
    assert (caught.value.reason, caught.value.row_group, caught.value.column) == ("invalid_utf8", 1, "text")


@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_text_is_text_in_whatever_type_it_is_stored(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["one", "zwei", None, "one"]
    path = tmp_path / "kinds.parquet"
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()).cast(kind)}), path)
    assert read_plain(path) == texts
    assert preflight(path, "text", decode=True) is None


def test_a_column_whose_name_is_no_utf8_is_a_finding_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "name.parquet"
    pq.write_table(pa.table({"text": ["a"], "qqqq": ["b"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"\xbe\xbe\xbe\xbe"))
    with pytest.raises(BadParquet) as caught:
        read_plain(path)
    assert caught.value.reason == "footer_corrupt"


def read_plain(path: Path) -> list[str | None]:
    return [text for batch in ParquetText(path, "text").batches() for text in batch.texts]


def test_a_file_read_past_the_cache_is_the_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000 + b"tail"
    path = tmp_path / "data"
    path.write_bytes(data)
    with PastCacheFile(path) as file:
        assert file.read() == data
        for place, size in [(0, 10), (4095, 2), (len(data) - 3, 10), (len(data), 5), (1_048_570, 4_000_000)]:
            file.seek(place)
            assert file.read(size) == data[place : place + size]
        assert file.seek(-4, 2) == len(data) - 4
        assert file.read(4) == b"tail"


def test_each_filter_books_what_it_drops_and_the_first_one_has_it(tmp_path: Path) -> None:
    rows = [
        (None, "en", 0.9), ("short", "en", 0.9), ("\U0001f525" * 6, "en", 0.9), ("x" * 30, "en", 0.9),
        ("a fine text", "fr", 0.1), ("a fine text", None, 0.9), ("a fine text", "de", 0.5),
        ("a fine text", "de", None), ("a fine text", "de", float("nan")), ("a fine text", "de", 0.49),
    ]  # fmt: skip
    table = pa.table(
        {name: [row[place] for row in rows] for place, name in enumerate(("text", "language", "score"))}
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    filters = Filters(min_chars=6, max_chars=20, languages=("de", "en"), at_least={"score": 0.5})
    batch = next(ParquetText(path, "text", filters.columns()).batches())
    selection = select(batch, make_filters(filters))
    assert selection.dropped == {"null": 1, "min_chars": 1, "max_chars": 1, "languages": 2, "at_least": 3}
    assert selection.keep.tolist() == [row in (2, 6) for row in range(10)]
    assert selection.chars == 6 + 11
    assert batch.chars[:3].tolist() == [0, 5, 6]


def test_a_threshold_on_a_column_that_holds_no_numbers_is_the_files_fault(parquet: Path) -> None:
    filters = Filters(at_least={"id": 0.5})
    batch = next(ParquetText(parquet, "text", filters.columns()).batches())
    with pytest.raises(BadParquet, match="column_type"):
        select(batch, make_filters(filters))
