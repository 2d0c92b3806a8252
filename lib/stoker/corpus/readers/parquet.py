"""Reads a parquet file as batches of rows from any row on, and judges a file that does not decode.

The page cache convicts no file: a row group that fails is decoded again past the cache, column by column.
Only a second failure there means bad content; a failed read is a storage error, never the file's fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.readers.finding import BadFile
from stoker.corpus.readers.parquet_preflight import (
    check_schema,
    chunk_of,
    decode_group,
    is_of,
    longest_entry,
    open_parquet,
    preflight,
    telling,
)
from stoker.corpus.readers.reader import Batch, TokenBatch
from stoker.corpus.readers.table import Tokens
from stoker.corpus.readers.token_lists import decode_tokens
from stoker.store.errors import Transient, storage_errors

ROW_BYTES = 4096  # of text, in the row that `read_rows` counts
MOST_GROWTH, LEAST_GROWN = 8, 100  # times `read_rows`, where that is at least 100
BATCH_BYTES = 16 << 20  # of text that many rows share, in a batch
PREVIEW_ROWS = 250  # in a table of a preview

__all__ = ["ParquetRows", "open_rows", "preflight", "tables", "text_bytes"]  # the functions of a reader


class ParquetRows:
    """A parquet file's text column and the further columns named, in batches.

    A batch is `read_rows` rows of some four kilobytes, fewer where rows are longer, and more where a row
    group before showed that they are shorter.
    """

    def __init__(
        self,
        path: Path,
        text_column: str,
        columns: Mapping[str, str] = {},
        read_rows: int = 250,
        tokens: Tokens | None = None,
    ) -> None:
        self.path, self.tokens = path, tokens
        self.text_column = text_column
        self.columns = list(dict.fromkeys((text_column, *columns)))
        self.read_rows = read_rows
        self._file = self._open()
        self._layout = _layout(self._file.metadata, text_column, self.columns)
        self.group_rows = tuple(group.rows for group in self._layout)
        self._rows_before = tuple(accumulate(self.group_rows, initial=0))
        begins = [*(group.begin for group in self._layout), self._layout[-1].begin if self._layout else 0]
        self._begin_of_rest = tuple(accumulate(reversed(begins), min))[::-1]
        self._seen = 0.0  # bytes of text a row, in the last row group read
        check_schema(self._file.schema_arrow, text_column, columns, tokens)

    @property
    def groups(self) -> Sequence[int]:
        return [group for group, rows in enumerate(self.group_rows) if rows]

    def after(self, batch: Batch) -> tuple[int, int]:
        end = batch.row + batch.rows
        at_end = end == self.group_rows[batch.row_group]
        return (batch.row_group + 1, 0) if at_end else (batch.row_group, end)

    def row_numbers(self, batch: Batch) -> npt.NDArray[np.int64]:
        first = self._rows_before[batch.row_group] + batch.row
        return np.arange(first, first + batch.rows)

    def read_up_to(self, row_group: int) -> int:
        return self._begin_of_rest[row_group + 1]

    def batches(self, row_group: int = 0, row: int = 0) -> Iterator[Batch]:
        for group in range(row_group, len(self.group_rows)):
            skip = row if group == row_group else 0
            batches = self._decode(group)
            while True:
                # Only decoding is guarded: an error in the consumer of a batch is not the file's.
                try:
                    with storage_errors("read", self.path), telling(lambda _: "page_corrupt"):
                        batch = next(batches, None)
                except BadFile as error:
                    self._convict(group, error)
                if batch is None:
                    break
                if batch.row + batch.rows > skip:
                    yield batch.from_row(skip)

    def _open(self) -> pq.ParquetFile:
        with storage_errors("read", self.path):
            try:
                return open_parquet(self.path)
            except BadFile as error:
                open_parquet(self.path, past_cache=True).close()
                raise _contradiction(self.path, "the footer", error) from error

    def _decode(self, group: int) -> Iterator[Batch]:
        """Yields one row group's batches from its first row; decoding checks that the text is UTF-8."""
        row = text_bytes = 0
        batches = self._file.iter_batches(self._rows_for(group), [group], self.columns, use_threads=False)
        for columns_read in batches:
            if self.tokens is None:
                texts, utf8 = decode_text(_as_string(columns_read[self.text_column]))
                yield Batch(group, row, columns_read, texts, utf8)
                text_bytes += sum(map(len, utf8))
            else:
                number, lists = self._rows_before[group] + row, columns_read[self.text_column]
                ids: list[Any] = decode_tokens(lists, self.tokens, number, group, self.text_column)
                yield TokenBatch(group, row, columns_read, ids, ids)
            row += columns_read.num_rows
        self._seen = text_bytes / max(row, 1)
        if row != self.group_rows[group]:
            raise pa.ArrowInvalid(f"{row} rows where the footer says {self.group_rows[group]}")

    def _rows_for(self, group: int) -> int:
        """Returns the number of rows for a batch of this row group.

        The footer shows too few bytes where texts repeat and are stored once, so the footer may only lower
        the number. A small `read_rows` is a request for little memory, and is not raised.
        """
        expected = max(self._layout[group].row_bytes, self._seen, 1.0)
        most = self.read_rows * (MOST_GROWTH if self._seen and self.read_rows >= LEAST_GROWN else 1)
        if longest := longest_entry(self.path, self._file.metadata, group, self.text_column, self.tokens):
            most = min(most, max(1, BATCH_BYTES // longest))
        return max(1, min(most, int(self.read_rows * ROW_BYTES / expected)))

    def _convict(self, group: int, first: Exception) -> None:
        """Decodes the row group past the cache: raises BadFile for bad content, else Transient."""
        with storage_errors("read", self.path), open_parquet(self.path, past_cache=True) as file:
            for _ in decode_group(self.path, file, group, self.text_column, self.columns, tokens=self.tokens):
                pass
        raise _contradiction(self.path, f"row group {group}", first) from first


open_rows = ParquetRows


def text_bytes(path: Path, text_column: str, tokens: Tokens | None = None) -> int:
    """Returns the bytes of the column by the footer, or its ids."""
    with open_parquet(path) as file:
        metadata = file.metadata
    chunks = [chunk_of(metadata.row_group(group), text_column) for group in range(metadata.num_row_groups)]
    return sum(
        chunk.total_uncompressed_size if tokens is None else chunk.num_values for chunk in chunks if chunk
    )


def tables(path: Path, most: int) -> Iterator[pa.Table]:
    """Yields the first rows with all columns."""
    with open_parquet(path) as file, telling(lambda _: "page_corrupt"):
        for batch in file.iter_batches(batch_size=min(PREVIEW_ROWS, most), use_threads=False):
            yield pa.Table.from_batches([batch.slice(0, most)])
            most -= batch.num_rows
            if most <= 0:
                return


def decode_text(column: pa.Array) -> tuple[list[str | None], list[memoryview]]:
    """Returns the texts and bytes of a string or large_string array.

    Raises ValueError for bytes that are not UTF-8.

    Decoding checks UTF-8 anyway; a check beforehand takes as long again. numpy conversion is avoided: Arrow
    would load pandas for it where pandas is installed.
    """
    if not len(column):
        return [], []
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
    places = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(b"" if data is None else data)
    utf8 = [view[start:end] for start, end in pairwise(places)]
    if column.null_count:
        for row in np.flatnonzero(np.array(column.is_null().to_pylist(), dtype=bool)).tolist():
            utf8[row] = view[:0]
    texts: list[str | None] = column.to_pylist()
    return texts, utf8


def _as_string(column: pa.Array) -> pa.Array:
    """Returns text of any type as string or large_string; raises ArrowInvalid."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return column.cast(pa.large_string())


class _Layout(NamedTuple):
    """The footer's figures of a row group."""

    rows: int
    row_bytes: float  # of text
    begin: int  # the offset of the first column that is read


def _layout(metadata: pq.FileMetaData, text_column: str, columns: Sequence[str]) -> list[_Layout]:
    found = []
    places: dict[int, bool] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not number:
            paths = {place: group.column(place).path_in_schema for place in range(group.num_columns)}
            named = {place: path for place, path in paths.items() if path.split(".")[0] in columns}
            places = {place: is_of(path, text_column) for place, path in named.items()}
        chunks = {place: group.column(place) for place in places}
        text = sum(chunk.total_uncompressed_size for place, chunk in chunks.items() if places[place])
        offsets = [
            offset
            for chunk in chunks.values()
            for offset in (chunk.data_page_offset, chunk.dictionary_page_offset)
            if offset is not None
        ]
        found.append(_Layout(group.num_rows, text / max(group.num_rows, 1), min(offsets, default=0)))
    return found


def _contradiction(path: Path, part: str, first: Exception) -> Transient:
    return Transient(
        f"{path}: {part} did not decode ({first}), but does when read again past the page cache; "
        "the file stays; check this machine's memory"
    )
