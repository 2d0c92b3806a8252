"""Reading parquet: the same rows from anywhere, and who is to blame when a page does not decode."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.parquet import BATCH_BYTES, ParquetRows, decode_text, preflight
from stoker.corpus.readers.reader import Batch
from stoker.shards.build.filters import make_filters, select
from stoker.shards.format.identity import Filters
from stoker.store.direct import PastCacheFile
from stoker.store.errors import StorageError, Transient
from support.text import damage_page, documents, write_parquet

TEXTS = documents(350)
AT_LEAST = Filters(at_least={"score": 0.5})
TEXT_TYPES = [
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "a.parquet", TEXTS)


def read(path: Path, row_group: int = 0, row: int = 0, read_rows: int = 30) -> list[str | None]:
    batches = ParquetRows(path, "text", {"language": "text"}, read_rows).batches(row_group, row)
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
        for batch in ParquetRows(parquet, "text", {}, 60).batches(2, 70)
    ]
    assert places == [(2, 70, 30), (3, 0, 50)]


def test_a_damaged_page_is_convicted_with_its_row_group_and_column(parquet: Path) -> None:
    damage_page(parquet, 2)
    with pytest.raises(BadFile) as caught:
        read(parquet)
    assert caught.value.finding.fields()["reason"] == "page_corrupt"
    assert (caught.value.finding.row_group, caught.value.finding.column) == (2, "text")
    assert caught.value.finding.detail


def test_damage_in_a_column_that_is_filtered_by_names_that_column(parquet: Path) -> None:
    damage_page(parquet, 1, "language")
    with pytest.raises(BadFile) as caught:
        read(parquet)
    assert (caught.value.finding.row_group, caught.value.finding.column) == (1, "language")


def test_damage_in_a_column_nobody_reads_harms_nobody(parquet: Path) -> None:
    damage_page(parquet, 1, "id")
    assert read(parquet) == TEXTS


def test_what_only_the_first_reading_saw_convicts_nothing(
    parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ParquetRows(parquet, "text")
    whole = source._decode

    def once_wrong(group: int):  # type: ignore[no-untyped-def]
        if group == 1:
            raise pa.ArrowInvalid("a bit fell over in memory")
        yield from whole(group)

    monkeypatch.setattr(source, "_decode", once_wrong)
    with pytest.raises(Transient, match="row group 1 did not decode"):
        list(source.batches())


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_is_not_the_files_fault(
    parquet: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    damage_page(parquet, 0)

    def fail(self: PastCacheFile, size: int = -1) -> bytes:
        raise OSError(number, "gone")

    monkeypatch.setattr(PastCacheFile, "read", fail)
    with pytest.raises(StorageError) as caught:
        read(parquet)
    assert caught.value.errno == number


def test_a_file_that_vanished_is_not_convicted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ParquetRows(tmp_path / "gone.parquet", "text")


def test_a_footer_that_does_not_parse_is_convicted(parquet: Path) -> None:
    parquet.write_bytes(parquet.read_bytes()[:-100])
    with pytest.raises(BadFile, match="truncated"):
        ParquetRows(parquet, "text")


def test_a_missing_or_unsuitable_column_is_named(parquet: Path) -> None:
    with pytest.raises(BadFile, match=r"missing_column.*'content'"):
        ParquetRows(parquet, "content")
    with pytest.raises(BadFile, match=r"missing_column.*'score'"):
        ParquetRows(parquet, "text", {"score": "number"})
    with pytest.raises(BadFile, match="column_type"):
        ParquetRows(parquet, "language_score")


def test_bytes_that_are_no_utf8_are_convicted_with_the_row_group(tmp_path: Path) -> None:
    good, bad = [b"text"] * 50, [b"text", b"\xff\xfe"]
    table = pa.table({"text": pa.array(good + bad, pa.binary())})
    path = tmp_path / "bytes.parquet"
    pq.write_table(table, path, row_group_size=50)
    with pytest.raises(BadFile) as caught:
        read_plain(path)
    assert (caught.value.finding.reason, caught.value.finding.row_group, caught.value.finding.column) == (
        "invalid_utf8",
        1,
        "text",
    )


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
    with pytest.raises(BadFile) as caught:
        read_plain(path)
    assert caught.value.finding.reason == "footer_corrupt"


def read_plain(path: Path) -> list[str | None]:
    return [text for batch in ParquetRows(path, "text").batches() for text in batch.texts]


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
    batch = next(ParquetRows(path, "text", filters.columns()).batches())
    selection = select(batch, make_filters(filters))
    assert selection.dropped == {"null": 1, "min_chars": 1, "max_chars": 1, "languages": 2, "at_least": 3}
    assert selection.keep.tolist() == [row in (2, 6) for row in range(10)]
    assert selection.chars == 6 + 11
    assert batch.chars[:3].tolist() == [0, 5, 6]


def test_a_language_that_is_no_utf8_is_none_of_those_wanted(tmp_path: Path) -> None:
    languages = pa.array([b"en", b"\xff", None], pa.binary()).view(pa.string())
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"], "language": languages}), path)
    filters = Filters(languages=("en",))
    batch = next(ParquetRows(path, "text", filters.columns()).batches())
    assert select(batch, make_filters(filters)).keep.tolist() == [True, False, False]


def test_nothing_heavy_is_loaded_to_read_and_filter_a_batch(tmp_path: Path) -> None:
    """Arrow loads pandas, where it is installed, for much that looks harmless: 0.3 s and 30 MB a builder."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", None], "language": ["en", None], "score": [0.5, None]}), path)
    reading = """if True:
        import sys
        from pathlib import Path
        from stoker.shards.build import build_worker
        from stoker.shards.build.filters import make_filters, select
        from stoker.shards.format.identity import Filters
        from stoker.corpus.readers.parquet import ParquetRows
        filters = Filters(min_chars=1, languages=("en",), at_least={"score": 0.5})
        batch = next(ParquetRows(Path(sys.argv[1]), "text", filters.columns()).batches())
        assert select(batch, make_filters(filters)).keep.tolist() == [True, False]
        print(*{"pandas", "torch"} & set(sys.modules))
    """
    loaded = subprocess.run([sys.executable, "-c", reading, path], capture_output=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize(
    ("filters", "column", "wants"),
    [
        (AT_LEAST, pa.array(["0.9", "0.1"]), "not number"),
        (AT_LEAST, pa.array([True, False]), "not number"),
        (AT_LEAST, pa.array([1, 2], pa.timestamp("s")), "not number"),
        (AT_LEAST, pa.array([[1.0], [2.0]]), "not number"),
        (Filters(languages=("en",)), pa.array([1, 2]), "not text"),
    ],
    ids=lambda each: str(getattr(each, "type", each)),
)
def test_a_column_of_a_filter_that_holds_something_else_convicts_the_file_at_each_look(
    tmp_path: Path, filters: Filters, column: pa.Array, wants: str
) -> None:
    """Were it bad to the builder and good to a look, it would be released and built again for ever."""
    name = next(iter(filters.columns()))
    with pytest.raises(BadFile, match=f"column_type, column {name}.*{wants}"):
        first_batch(tmp_path, filters, **{name: column})
    flaw = preflight(tmp_path / "columns.parquet", "text", filters.columns())
    assert flaw is not None
    assert (flaw.reason, flaw.column) == ("column_type", name)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(22, 3), "dictionary"], ids=str
)
def test_a_threshold_takes_numbers_of_any_type(tmp_path: Path, kind: pa.DataType | str) -> None:
    filters = Filters(at_least={"score": 2})
    numbers = pa.array([1, 2, 3, None])
    column = numbers.dictionary_encode() if kind == "dictionary" else numbers.cast(kind)
    selection = select(first_batch(tmp_path, filters, score=column), make_filters(filters))
    assert selection.keep.tolist() == [False, True, True, False]
    assert selection.dropped == {"at_least": 2}


def test_languages_are_words_and_nothing_else(tmp_path: Path) -> None:
    filters = Filters(languages=("en",))
    words = pa.array(["en", None, "de"]).dictionary_encode()
    assert select(first_batch(tmp_path, filters, language=words), make_filters(filters)).keep.tolist() == [
        True, False, False,
    ]  # fmt: skip


def first_batch(home: Path, filters: Filters, **columns: pa.Array) -> Batch:
    path = home / "columns.parquet"
    rows = len(next(iter(columns.values())))
    pq.write_table(pa.table({"text": ["some text"] * rows, **columns}), path)
    return next(ParquetRows(path, "text", filters.columns()).batches())


def test_batches_grow_for_short_rows_and_shrink_for_long_ones(tmp_path: Path) -> None:
    short, long = tmp_path / "short.parquet", tmp_path / "long.parquet"
    write_parquet(short, ["x" * 100 + str(n) for n in range(9000)], row_group=3000)
    write_parquet(long, [str(n) * 5000 for n in range(1000, 1200)], row_group=100)
    sizes = [(batch.row_group, batch.rows) for batch in ParquetRows(short, "text", {}, 250).batches()]
    assert sizes[:12] == [(0, 250)] * 12
    assert sizes[12:] == [(1, 2000), (1, 1000), (2, 2000), (2, 1000)]
    assert max(batch.rows for batch in ParquetRows(long, "text", {}, 250).batches()) < 60
    small = [batch.rows for batch in ParquetRows(short, "text", {}, 16).batches()]
    assert max(small) == 16  # who asks for little gets little
    texts = [text for batch in ParquetRows(short, "text", {}, 250).batches(1, 7) for text in batch.texts]
    assert texts == ["x" * 100 + str(n) for n in range(3007, 9000)]


def test_a_reader_tells_what_of_the_file_is_done_with(parquet: Path) -> None:
    source = ParquetRows(parquet, "text", {"language": "text"})
    metadata = pq.ParquetFile(parquet).metadata
    ends = [source.read_up_to(group) for group in range(4)]
    assert ends == sorted(ends)
    for group in range(3):
        later = [metadata.row_group(group + 1).column(place) for place in range(metadata.num_columns)]
        assert ends[group] <= min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in later)
        assert ends[group] > 0
    assert ends[3] <= parquet.stat().st_size


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_are_taken_from_the_buffers_as_they_lie(kind: pa.DataType) -> None:
    texts = ["one", None, "", "na\u00efve", "\U0001f525" * 3, None]
    whole = pa.array(texts, kind)
    for column, expected in ((whole, texts), (whole.slice(2, 3), texts[2:5]), (whole[:0], [])):
        found, utf8 = decode_text(column)
        assert found == expected
        assert [bytes(each) for each in utf8] == [(text or "").encode() for text in expected]
    assert decode_text(pa.array([""], kind))[0] == [""]
    assert decode_text(pa.array([None, None], kind))[0] == [None, None]


def test_what_lies_under_a_null_is_nobodys_text() -> None:
    data = pa.py_buffer(b"good\xff\xfe")
    offsets = pa.py_buffer(bytes.fromhex("00000000 04000000 06000000"))
    column = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    assert decode_text(column)[0] == ["good", None]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    with pytest.raises(UnicodeDecodeError):
        decode_text(broken)


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
def test_a_long_text_that_is_stored_once_for_many_rows_is_read_in_small_batches(
    tmp_path: Path, encoding: str
) -> None:
    path, text = tmp_path / "repeated.parquet", "a long text " * 87_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 70, pa.int32()), [text])
    if encoding == "RLE_DICTIONARY":
        pq.write_table(pa.table({"text": column}), path, compression="zstd", store_schema=False)
    else:
        table = pa.table({"text": column.cast(pa.string())})
        pq.write_table(table, path, use_dictionary=False, column_encoding={"text": encoding})
    batches = list(ParquetRows(path, "text").batches())
    assert max(sum(map(len, batch.utf8)) for batch in batches) <= BATCH_BYTES
    assert [each for batch in batches for each in batch.texts] == [text] * 70
