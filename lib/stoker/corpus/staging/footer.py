"""Opening a parquet file that nobody vouches for: its ends, its footer's size, and what reading it may cost.

A footer of some megabytes can claim lists that take gigabytes, and one with encrypted columns ends the whole
process when they are asked about; so both are told before Arrow is let near them.
Heavy (pyarrow): for workers and the command line, never for a daemon.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.corpus.staging.finding import BadParquet
from stoker.store.direct import PastCacheFile

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
_SMALLEST = 12  # both magics and the footer's length
_SIGNATURE_BYTES = 28  # what follows the footer where columns are encrypted: a nonce and a tag

# A file of 2 GB with a thousand row groups has a footer of 2 MB, a few dozen bytes a column chunk. One that
# is made to hurt needs three, and Arrow about a kilobyte for each: lists are bounded, and the memory for all.
FOOTER_BYTES = 64 << 20
FOOTER_MEMORY_BYTES = 768 << 20
THRIFT_LIMITS = {"thrift_container_size_limit": 100_000, "thrift_string_size_limit": 16 << 20}

READ_BUFFER = 1 << 20  # bytes read ahead in a column; without it Arrow loads whole column chunks


def open_parquet(path: Path, *, past_cache: bool = False) -> pq.ParquetFile:
    """The file with its footer read; BadParquet where it has none, OSError where it cannot be read now.

    MemoryError says something about this machine, nothing about the file.
    """
    with PastCacheFile(path) if past_cache else path.open("rb") as stream:
        footer_bytes = _check_ends(stream, path.stat().st_size)
    with telling(_footer_reason), _memory_for_the_footer(footer_bytes):
        file = pq.ParquetFile(
            PastCacheFile(path) if past_cache else path,
            pre_buffer=False,
            buffer_size=READ_BUFFER,
            page_checksum_verification=True,
            **THRIFT_LIMITS,
        )
        file.schema_arrow  # noqa: B018 - what it raises belongs to the footer
    if footer_bytes - file.metadata.serialized_size == _SIGNATURE_BYTES:
        raise BadParquet("encrypted", "its footer is signed: it has encrypted columns")
    return file


@contextmanager
def telling(reason: Callable[[Exception], str], **place: Any) -> Iterator[None]:
    """Turn the reader's complaints into a BadParquet; what the system or the memory says stays what it is.

    Arrow raises OSError for both: with an errno where the system failed, without one where it cannot decode.
    """
    try:
        yield
    except (pa.ArrowMemoryError, MemoryError):
        raise
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise BadParquet(reason(error), str(error), **place) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadParquet(reason(error), str(error), **place) from error


def _check_ends(file: Any, size: int) -> int:
    """Both magics and the length of the footer, which is returned."""
    if size == 0:
        raise BadParquet("zero_bytes", "the file is empty")
    head = file.read(4)
    file.seek(-min(8, size), os.SEEK_END)
    end = file.read(8)
    tail, length = end[-4:], int.from_bytes(end[:4], "little")
    if _MAGIC_ENCRYPTED in (head, tail):
        raise BadParquet("encrypted", "the footer is encrypted; Stoker reads plain parquet")
    if head != _MAGIC:
        raise BadParquet("not_parquet", f"it begins with {head!r}, not {_MAGIC!r}")
    if tail != _MAGIC or size < _SMALLEST:
        raise BadParquet("truncated", f"it ends with {tail!r} after {size} bytes, not {_MAGIC!r}")
    if length > size - _SMALLEST:
        raise BadParquet("footer_absurd", f"a footer of {length} bytes in a file of {size}")
    if length > FOOTER_BYTES:
        raise BadParquet("footer_absurd", f"a footer of {length} bytes; {FOOTER_BYTES} are read at most")
    return length


def _footer_reason(error: Exception) -> str:
    said = str(error).lower()
    if "encrypt" in said or "decrypt" in said:
        return "encrypted"
    # Arrow's own limits, as against what it cannot make sense of.
    return (
        "footer_absurd" if "exceeded size limit" in said or "too deeply nested" in said else "footer_corrupt"
    )


@contextmanager
def _memory_for_the_footer(footer_bytes: int) -> Iterator[None]:
    """Bound this process's address space while the footer is read.

    The bound hits the file alone, so it convicts it, as long as the machine has that much memory to spare.
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
        import psutil  # noqa: PLC0415 - 10 ms of each worker's start, for a footer that nearly no file has

        if min(bounds) < limit or psutil.virtual_memory().available < FOOTER_MEMORY_BYTES:
            raise MemoryError(f"no memory to read a footer of {footer_bytes} bytes") from error
        most = f"more than {FOOTER_MEMORY_BYTES >> 20} MiB of memory"
        raise BadParquet("footer_absurd", f"a footer of {footer_bytes} bytes takes {most}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
