"""Preflight: checks that the build can read a parquet file, by its footer or by decoding it.

Heavy (pyarrow): for workers and the command line, never for a daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.staging.dictionaries import longest_entry
from stoker.corpus.staging.finding import BadParquet, Finding
from stoker.corpus.staging.footer import open_parquet, telling
from stoker.kit.workers.child import ALIVE_EVERY_S, paced
from stoker.store.errors import Transient

_BATCH_ROWS, _BATCH_BYTES = 250, 16 << 20
_FIRST_BYTE = 4  # after the magic
# Far more than any writer puts into one row group, one column chunk, one file.
_MOST_GROUP_ROWS, _MOST_CHUNK_BYTES, _MOST_ROWS = 1 << 31, 1 << 40, 1 << 40
# By the kind of a column. Bytes count as text, because some writers leave out the annotation; the rows decide
# whether they are UTF-8.
_TYPES = {
    "text": (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
}


def preflight(
    path: Path,
    text_column: str,
    columns: Mapping[str, str] = {},
    *,
    decode: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    past_cache: bool = False,
) -> Finding | None:
    """Returns the first flaw of the file, None where there is none.

    The file must have `columns` besides the text column, each of its kind ("text" or "number"). With `decode`
    all of them are read whole, which also finds a corrupt page; `progress` is called with the row groups
    done, also in the middle of a long row group. Raises OSError when the file cannot be read now, MemoryError
    where memory is short, Transient where a second reading contradicts the first: no such error is evidence
    about the file.
    """
    try:
        with open_parquet(path, past_cache=past_cache) as file:
            check_schema(file.schema_arrow, text_column, columns)
            _check_footer(file.metadata, path.stat().st_size)
            if decode:
                alive = paced(progress, ALIVE_EVERY_S)
                for group in range(file.num_row_groups):
                    for _ in decode_group(path, file, group, text_column, columns):
                        alive(group)
                    progress(group + 1)
    except BadParquet as found:
        return found.finding
    return None


def check_schema(schema: pa.Schema, text_column: str, columns: Mapping[str, str]) -> None:
    """Raises BadParquet unless the schema has each column once, with values of its kind."""
    for column, kind in ((text_column, "text"), *columns.items()):
        found = len(schema.get_all_field_indices(column))
        if found > 1:
            raise BadParquet("ambiguous_column", f"{found} columns are called {column!r}", None, column)
        if not found:
            has = ", ".join(schema.names[:20])
            raise BadParquet("missing_column", f"no single column {column!r}; it has: {has}", None, column)
        type_ = schema.field(column).type
        values = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not any(holds(values) for holds in _TYPES[kind]):
            raise BadParquet("column_type", f"{column!r} is {type_}, not {kind}", None, column)


def _check_footer(footer: pq.FileMetaData, size: int) -> None:
    if footer.num_rows == 0:
        raise BadParquet("no_rows", "the file has a schema but not one row")
    _check_between(footer.num_rows, _MOST_ROWS, "rows in all")
    rows = 0
    for group in range(footer.num_row_groups):
        with telling(lambda _: "footer_inconsistent", row_group=group):
            metadata = footer.row_group(group)
            _check_between(metadata.num_rows, _MOST_GROUP_ROWS, "rows", group)
            rows += metadata.num_rows
            for index in range(metadata.num_columns):
                _check_chunk(metadata.column(index), size, group)
    if rows != footer.num_rows:
        raise BadParquet(
            "footer_inconsistent", f"row groups hold {rows} rows, the footer says {footer.num_rows}"
        )


def _check_chunk(chunk: pq.ColumnChunkMetaData, size: int, group: int) -> None:
    """Checks that a column chunk is inside the file, and unpacks to a possible size."""
    column = chunk.path_in_schema
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    # A row group without rows has no pages, and writers record any offset for it.
    if chunk.num_values and (start < _FIRST_BYTE or end < start or end > size):
        detail = f"bytes {start} to {end} of a file of {size}"
        raise BadParquet("footer_inconsistent", detail, group, column)
    _check_between(chunk.num_values, _MOST_ROWS, "values", group, column)
    _check_between(chunk.total_uncompressed_size, _MOST_CHUNK_BYTES, "bytes unpacked", group, column)


def _check_between(
    value: int, most: int, what: str, group: int | None = None, column: str | None = None
) -> None:
    if not 0 <= value <= most:
        raise BadParquet("footer_absurd", f"{value} {what}", group, column)


def decode_group(
    path: Path, file: pq.ParquetFile, group: int, text_column: str, columns: Iterable[str]
) -> Iterator[None]:
    """Decodes the needed columns of a row group; after a failure each alone, to name the bad column."""
    wanted = list(dict.fromkeys((text_column, *columns)))
    try:
        yield from _decode(path, file, group, wanted, text_column)
    except BadParquet as first:
        for column in wanted:
            yield from _decode(path, file, group, [column], text_column)
        raise Transient(f"row group {group} did not decode ({first}), but does when read again") from first


def _decode(
    path: Path, file: pq.ParquetFile, group: int, columns: list[str], text_column: str
) -> Iterator[None]:
    rows, expected = 0, file.metadata.row_group(group).num_rows
    longest = longest_entry(path, file.metadata, group, text_column)
    most = max(1, min(_batch_rows(file, group), _BATCH_BYTES // max(1, longest)))
    with telling(lambda _: "page_corrupt", row_group=group, column=columns[0]):
        for batch in file.iter_batches(most, row_groups=[group], columns=columns, use_threads=False):
            if text_column in columns:
                _check_text(batch[text_column], group, rows, text_column)
            rows += batch.num_rows
            yield
        if rows != expected:
            raise pa.ArrowInvalid(f"{rows} rows where the footer says {expected}")


def _batch_rows(file: pq.ParquetFile, group: int) -> int:
    """Returns the rows to decode at once: fewer where rows are long, so that memory stays bounded."""
    metadata = file.metadata.row_group(group)
    row_bytes = int(metadata.total_byte_size) // max(1, int(metadata.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))


def _check_text(values: pa.Array, group: int, row: int, text_column: str) -> None:
    try:
        values.cast(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid as error:
        where = f"rows {row} to {row + len(values) - 1}: {error}"
        raise BadParquet("invalid_utf8", where, group, text_column) from error
