"""Preflight: whether a parquet file can be what the build expects, from its footer or by decoding it.

Heavy (pyarrow): for workers and the command line, never for a daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_SMALLEST = 12  # both magics and the footer's length
_BATCH_ROWS = 250
_TEXT_TYPES = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)


@dataclass(frozen=True)
class Flaw:
    """Why a file cannot be built: a stable word, where it was found, and the reader's own words."""

    reason: str
    detail: str
    row_group: int | None = None
    column: str | None = None

    def fields(self) -> dict[str, Any]:
        """As the fields of a worker's result."""
        return asdict(self)


class _FlawError(Exception):
    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.detail)
        self.flaw = flaw


def preflight(
    path: Path,
    text_column: str,
    columns: Sequence[str] = (),
    *,
    decode: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Flaw | None:
    """The first flaw of the file, None when there is none.

    `columns` must be there besides the text. With `decode` the whole text column is read, so that a corrupt
    page is found too; `progress` is told the row groups done. Raises OSError when the file cannot be read
    now, which says nothing about it.
    """
    try:
        _check_ends(path)
        with _open(path) as file:
            _check_schema(file.schema_arrow, text_column, columns)
            _check_footer(file.metadata, path.stat().st_size)
            if decode:
                _decode(file, text_column, progress)
    except _FlawError as found:
        return found.flaw
    return None


def _check_ends(path: Path) -> None:
    size = path.stat().st_size
    if size == 0:
        raise _FlawError(Flaw("zero_bytes", "the file is empty"))
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-min(4, size), os.SEEK_END)
        tail = file.read(4)
    if _MAGIC_ENCRYPTED in (head, tail):
        raise _FlawError(Flaw("encrypted", "the footer is encrypted; Stoker reads plain parquet"))
    if head != _MAGIC:
        raise _FlawError(Flaw("not_parquet", f"it begins with {head!r}, not {_MAGIC!r}"))
    if tail != _MAGIC or size < _SMALLEST:
        raise _FlawError(Flaw("truncated", f"it ends with {tail!r} after {size} bytes, not {_MAGIC!r}"))


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except pa.ArrowMemoryError:  # says something about this machine, nothing about the file
        raise
    except (pa.ArrowException, ValueError) as error:
        raise _FlawError(Flaw(_footer_reason(error), str(error))) from error
    except OSError as error:
        if error.errno is not None:  # the disk's words, not the reader's
            raise
        raise _FlawError(Flaw(_footer_reason(error), str(error))) from error


def _footer_reason(error: Exception) -> str:
    return (
        "encrypted"
        if "encrypt" in str(error).lower() or "decrypt" in str(error).lower()
        else "footer_corrupt"
    )


def _check_schema(schema: pa.Schema, text_column: str, columns: Sequence[str]) -> None:
    for column in (text_column, *columns):
        if schema.get_field_index(column) < 0:
            has = ", ".join(schema.names[:20])
            raise _FlawError(
                Flaw("missing_column", f"no single column {column!r}; it has: {has}", None, column)
            )
    found = schema.field(text_column).type
    if not is_text(found):
        raise _FlawError(Flaw("column_type", f"{text_column!r} is {found}, not text", None, text_column))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text: strings or bytes of any width, plain or by dictionary.

    Bytes are what a writer leaves that annotates nothing; the rows decide whether they are UTF-8.
    """
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(holds(kind) for holds in _TEXT_TYPES)


def _check_footer(footer: pq.FileMetaData, size: int) -> None:
    if footer.num_rows == 0:
        raise _FlawError(Flaw("no_rows", "the file has a schema but not one row"))
    rows = 0
    for group in range(footer.num_row_groups):
        metadata = footer.row_group(group)
        rows += metadata.num_rows
        for index in range(metadata.num_columns):
            chunk = metadata.column(index)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                start = min(start, chunk.dictionary_page_offset)
            if (
                start < len(_MAGIC)
                or chunk.total_compressed_size < 0
                or start + chunk.total_compressed_size > size
            ):
                detail = f"bytes {start} to {start + chunk.total_compressed_size} of a file of {size}"
                raise _FlawError(Flaw("footer_inconsistent", detail, group, chunk.path_in_schema))
    if rows != footer.num_rows:
        raise _FlawError(
            Flaw("footer_inconsistent", f"row groups hold {rows} rows, the footer says {footer.num_rows}")
        )


def _decode(file: pq.ParquetFile, text_column: str, progress: Callable[[int], None]) -> None:
    for group in range(file.num_row_groups):
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[text_column]):
                _check_text(batch.column(0), group, text_column)
        except pa.ArrowMemoryError:  # says something about this machine, nothing about the file
            raise
        except (pa.ArrowException, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise _FlawError(Flaw("page_corrupt", str(error), group, text_column)) from error
        progress(group + 1)


def _check_text(values: pa.Array, group: int, text_column: str) -> None:
    try:
        values.cast(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid as error:
        raise _FlawError(Flaw("invalid_utf8", str(error), group, text_column)) from error
