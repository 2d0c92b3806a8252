"""Checks that the build can read an untrusted parquet file, by its footer or by decoding it.

A footer of some megabytes can claim lists that take gigabytes, and a file with encrypted columns ends the
whole process when Arrow is asked about them; so both are detected before Arrow reads the file. Heavy
(pyarrow): for workers and the command line, never for a daemon.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.readers.finding import BadFile, Finding
from stoker.corpus.readers.table import Tokens
from stoker.corpus.readers.token_lists import decode_tokens, is_token_lists
from stoker.kit.workers.child import ALIVE_EVERY_S, paced
from stoker.store.direct import PastCacheFile
from stoker.store.errors import Transient

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_SMALLEST = 12  # both magics and the footer's length
_SIGNATURE_BYTES = 28  # behind the footer of a file with encrypted columns: a nonce and a tag

# A file of 2 GB with a thousand row groups has a footer of 2 MB, a few dozen bytes a column chunk. A
# malicious footer needs three bytes for a column chunk, and Arrow about a kilobyte: so the length of lists
# and the memory for all are bounded.
FOOTER_BYTES = 64 << 20
FOOTER_MEMORY_BYTES = 768 << 20
THRIFT_LIMITS = {"thrift_container_size_limit": 100_000, "thrift_string_size_limit": 16 << 20}

READ_BUFFER = 1 << 20  # bytes read ahead in a column; without it Arrow loads whole column chunks

_BATCH_ROWS, _BATCH_BYTES = 250, 16 << 20
_FIRST_BYTE = 4  # after the magic
_MOST = 1 << 40  # rows, values or bytes: far more than any writer puts into one file
TOKENS = "lists of uint16 or uint32"
# By the kind of a column. Bytes count as text, because some writers leave out the annotation; the rows decide
# whether they are UTF-8.
_TYPES = {
    "text": (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    TOKENS: (is_token_lists,),
}

_HARMLESS = 64 << 20  # bytes that a batch would take at most if every row were as long as its row group
# A larger compressed dictionary holds about one text a row, and is expensive to read twice.
_SMALL, _BYTES_A_ROW = 256 << 10, 64
_UNKNOWN = 1 << 20  # assumed with DELTA_BYTE_ARRAY, where each row may repeat the row before


def preflight(
    path: Path,
    text_column: str,
    columns: Mapping[str, str] = {},
    *,
    tokens: Tokens | None = None,
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
            check_schema(file.schema_arrow, text_column, columns, tokens)
            _check_footer(file.metadata, path.stat().st_size)
            if decode:
                alive = paced(progress, ALIVE_EVERY_S)
                for group in range(file.num_row_groups):
                    for _ in decode_group(path, file, group, text_column, columns, tokens=tokens):
                        alive(group)
                    progress(group + 1)
    except BadFile as found:
        return found.finding
    return None


# The footer


def open_parquet(path: Path, *, past_cache: bool = False) -> pq.ParquetFile:
    """Opens the file and reads its footer; raises BadFile for a bad footer, OSError for a failed read.

    A MemoryError is about this machine and not about the file.
    """
    with PastCacheFile(path) if past_cache else path.open("rb") as stream:
        footer_bytes = _check_ends(stream, path.stat().st_size)
    with telling(_footer_reason), _memory_for_the_footer(footer_bytes):
        file = _bounded(PastCacheFile(path) if past_cache else path)
        file.schema_arrow  # noqa: B018 - an error it raises belongs to the footer
    if footer_bytes - file.metadata.serialized_size == _SIGNATURE_BYTES:
        raise BadFile("encrypted", "its footer is signed: it has encrypted columns")
    return file


def _bounded(source: Path | PastCacheFile, **options: Any) -> pq.ParquetFile:
    """Opens parquet as everything in Stoker does: any column chunk is read a buffer at a time."""
    return pq.ParquetFile(
        source,
        pre_buffer=False,
        buffer_size=READ_BUFFER,
        page_checksum_verification=True,
        **THRIFT_LIMITS,
        **options,
    )


@contextmanager
def telling(reason: Callable[[Exception], str], **place: Any) -> Iterator[None]:
    """Turns the reader's errors into BadFile; errors of the system or of memory pass unchanged.

    Arrow raises OSError for both: with an errno where the system failed, without an errno where decoding
    failed.
    """
    try:
        yield
    except (pa.ArrowException, ValueError, LookupError, OverflowError, OSError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise BadFile(reason(error), str(error), **place) from error


def _shown(data: bytes) -> str:
    """Returns bytes for a person: text where they are text, else their hexadecimal digits."""
    return data.decode() if data.isascii() and data.decode().isprintable() else data.hex(" ")


def _check_ends(file: Any, size: int) -> int:
    """Checks both magics and returns the length of the footer."""
    if size == 0:
        raise BadFile("zero_bytes", "the file is empty")
    head = file.read(4)
    file.seek(-min(8, size), os.SEEK_END)
    end = file.read(8)
    tail, length = end[-4:], int.from_bytes(end[:4], "little")
    if _MAGIC_ENCRYPTED in (head, tail):
        raise BadFile("encrypted", "the footer is encrypted; Stoker reads plain parquet")
    if head != _MAGIC:
        raise BadFile("not_parquet", f"it begins with {_shown(head)}, not {_shown(_MAGIC)}")
    if tail != _MAGIC or size < _SMALLEST:
        raise BadFile("truncated", f"it ends with {_shown(tail)} after {size} bytes, not {_shown(_MAGIC)}")
    if length > size - _SMALLEST:
        raise BadFile("footer_absurd", f"a footer of {length} bytes in a file of {size}")
    if length > FOOTER_BYTES:
        raise BadFile("footer_absurd", f"a footer of {length} bytes; {FOOTER_BYTES} are read at most")
    return length


def _footer_reason(error: Exception) -> str:
    said = str(error).lower()
    if "encrypt" in said or "decrypt" in said:
        return "encrypted"
    # Arrow's own limits, as against bytes that it cannot parse.
    return (
        "footer_absurd" if "exceeded size limit" in said or "too deeply nested" in said else "footer_corrupt"
    )


@contextmanager
def _memory_for_the_footer(footer_bytes: int) -> Iterator[None]:
    """Bounds this process's address space while the footer is read.

    The bound is met because of the file alone, so exceeding it convicts the file, provided that the machine
    has that much memory free.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + FOOTER_MEMORY_BYTES
    bounds = [limit, *(each for each in before if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), before[1]))
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
            raise
        import psutil  # noqa: PLC0415 - 10 ms of each worker's start, for a rare kind of footer

        if min(bounds) < limit or psutil.virtual_memory().available < FOOTER_MEMORY_BYTES:
            raise MemoryError(f"no memory to read a footer of {footer_bytes} bytes") from error
        most = f"more than {FOOTER_MEMORY_BYTES >> 20} MiB of memory"
        raise BadFile("footer_absurd", f"a footer of {footer_bytes} bytes takes {most}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# What the footer says


def check_schema(
    schema: pa.Schema, text_column: str, columns: Mapping[str, str], tokens: Tokens | None = None
) -> None:
    """Raises BadFile unless the schema has each column once, with values of its kind."""
    for column, kind in ((text_column, "text" if tokens is None else TOKENS), *columns.items()):
        found = len(schema.get_all_field_indices(column))
        if found > 1:
            raise BadFile("ambiguous_column", f"{found} columns are called {column!r}", None, column)
        if not found:
            has = ", ".join(schema.names[:20])
            raise BadFile("missing_column", f"no single column {column!r}; it has: {has}", None, column)
        type_ = schema.field(column).type
        values = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not any(holds(values) for holds in _TYPES[kind]):
            raise BadFile("column_type", f"{column!r} is {type_}, not {kind}", None, column)


def _check_footer(footer: pq.FileMetaData, size: int) -> None:
    if footer.num_rows == 0:
        raise BadFile("no_rows", "the file has a schema but not one row")
    _check_sane(footer.num_rows, "rows in all")
    rows = 0
    for group in range(footer.num_row_groups):
        with telling(lambda _: "footer_inconsistent", row_group=group):
            metadata = footer.row_group(group)
            _check_sane(metadata.num_rows, "rows", group)
            rows += metadata.num_rows
            for index in range(metadata.num_columns):
                _check_chunk(metadata.column(index), size, group)
    if rows != footer.num_rows:
        raise BadFile(
            "footer_inconsistent", f"row groups hold {rows} rows, the footer says {footer.num_rows}"
        )


def _check_chunk(chunk: pq.ColumnChunkMetaData, size: int, group: int) -> None:
    """Checks that a column chunk is inside the file, and unpacks to a possible size."""
    column = chunk.path_in_schema
    offsets = (chunk.data_page_offset, chunk.dictionary_page_offset)
    start = min(offset for offset in offsets if offset is not None)
    end = start + chunk.total_compressed_size
    # A row group without rows has no pages, and writers record any offset for it.
    if chunk.num_values and (start < _FIRST_BYTE or end < start or end > size):
        detail = f"bytes {start} to {end} of a file of {size}"
        raise BadFile("footer_inconsistent", detail, group, column)
    _check_sane(chunk.num_values, "values", group, column)
    _check_sane(chunk.total_uncompressed_size, "bytes unpacked", group, column)


def _check_sane(value: int, what: str, group: int | None = None, column: str | None = None) -> None:
    if not 0 <= value <= _MOST:
        raise BadFile("footer_absurd", f"{value} {what}", group, column)


# The rows


def decode_group(
    path: Path,
    file: pq.ParquetFile,
    group: int,
    text_column: str,
    columns: Iterable[str],
    *,
    tokens: Tokens | None = None,
) -> Iterator[None]:
    """Decodes the needed columns of a row group; after a failure each alone, to name the bad column."""
    wanted = list(dict.fromkeys((text_column, *columns)))
    try:
        yield from _decode(path, file, group, wanted, text_column, tokens=tokens)
    except BadFile as first:
        for column in wanted:
            yield from _decode(path, file, group, [column], text_column, tokens=tokens)
        raise Transient(f"row group {group} did not decode ({first}), but does when read again") from first


def _decode(
    path: Path,
    file: pq.ParquetFile,
    group: int,
    columns: list[str],
    text_column: str,
    *,
    tokens: Tokens | None,
) -> Iterator[None]:
    metadata = file.metadata.row_group(group)
    rows, expected = 0, metadata.num_rows
    longest = longest_entry(path, file.metadata, group, text_column, tokens)
    row_bytes = max(1, longest, metadata.total_byte_size // max(1, expected))
    most = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))  # bounds the memory where rows are long
    with telling(lambda _: "page_corrupt", row_group=group, column=columns[0]):
        for batch in file.iter_batches(most, row_groups=[group], columns=columns, use_threads=False):
            if text_column not in columns:
                pass
            elif tokens is None:
                _check_text(batch[text_column], group, rows, text_column)
            else:
                before = sum(file.metadata.row_group(one).num_rows for one in range(group))
                decode_tokens(batch[text_column], tokens, before + rows, group, text_column)
            rows += batch.num_rows
            yield
        if rows != expected:
            raise pa.ArrowInvalid(f"{rows} rows where the footer says {expected}")


def _check_text(values: pa.Array, group: int, row: int, text_column: str) -> None:
    try:
        values.cast(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid as error:
        where = f"rows {row} to {row + len(values) - 1}: {error}"
        raise BadFile("invalid_utf8", where, group, text_column) from error


def is_of(path: str, column: str) -> bool:
    """Whether a path in the schema is a column's own: the ids of a list lie one or two names deeper."""
    return path == column or path in (f"{column}.list.element", f"{column}.list.item", f"{column}.array")


def chunk_of(about: pq.RowGroupMetaData, column: str) -> pq.ColumnChunkMetaData | None:
    """Returns the chunk of a column in a row group."""
    chunks = (about.column(number) for number in range(about.num_columns))
    return next((each for each in chunks if is_of(each.path_in_schema, column)), None)


def longest_entry(
    path: Path, metadata: pq.FileMetaData, group: int, column: str, tokens: Tokens | None = None
) -> int:
    """Returns the bytes of the longest text that rows of a row group may share; 0 where they share little.

    An unreadable dictionary gives 0 as well: the decoder of the row group reports the flaw. Of tokens it is
    the usual list: a run of one id takes a few bytes in the file, whatever its length.
    """
    about = metadata.row_group(group)
    chunk = chunk_of(about, column)
    if chunk is not None and tokens is not None:
        return int(chunk.num_values * np.dtype(tokens.dtype).itemsize // max(1, about.num_rows))
    if chunk is None or about.num_rows * chunk.total_uncompressed_size <= _HARMLESS:
        return 0
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        return _UNKNOWN
    begins = chunk.dictionary_page_offset
    if begins is None or chunk.data_page_offset - begins > max(_SMALL, _BYTES_A_ROW * about.num_rows):
        return 0
    import pyarrow.compute as pc  # noqa: PLC0415 - 25 ms of each worker's start, for a rare kind of column

    try:
        with _bounded(path, metadata=metadata, read_dictionary=[column]) as file:
            values = next(file.iter_batches(1, [group], [column], use_threads=False))[column]
        return int(pc.max(pc.binary_length(values.dictionary)).as_py() or 0)
    except (pa.ArrowException, OSError, ValueError, StopIteration, AttributeError):
        return 0
