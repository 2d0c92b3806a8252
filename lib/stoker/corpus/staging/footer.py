"""Opens untrusted parquet files: checks the ends, the footer's size and the cost of reading it.

A footer of some megabytes can claim lists that take gigabytes, and a file with encrypted columns ends the
whole process when Arrow is asked about them; so both are detected before Arrow reads the file. Heavy
(pyarrow): for workers and the command line, never for a daemon.
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
_SIGNATURE_BYTES = 28  # behind the footer of a file with encrypted columns: a nonce and a tag

# A file of 2 GB with a thousand row groups has a footer of 2 MB, a few dozen bytes a column chunk. A
# malicious footer needs three bytes for a column chunk, and Arrow about a kilobyte: so the length of lists
# and the memory for all are bounded.
FOOTER_BYTES = 64 << 20
FOOTER_MEMORY_BYTES = 768 << 20
THRIFT_LIMITS = {"thrift_container_size_limit": 100_000, "thrift_string_size_limit": 16 << 20}

READ_BUFFER = 1 << 20  # bytes read ahead in a column; without it Arrow loads whole column chunks


def open_parquet(path: Path, *, past_cache: bool = False) -> pq.ParquetFile:
    """Opens the file and reads its footer; raises BadParquet for a bad footer, OSError for a failed read.

    A MemoryError is about this machine and not about the file.
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
        file.schema_arrow  # noqa: B018 - an error it raises belongs to the footer
    if footer_bytes - file.metadata.serialized_size == _SIGNATURE_BYTES:
        raise BadParquet("encrypted", "its footer is signed: it has encrypted columns")
    return file


@contextmanager
def telling(reason: Callable[[Exception], str], **place: Any) -> Iterator[None]:
    """Turns the reader's errors into BadParquet; errors of the system or of memory pass unchanged.

    Arrow raises OSError for both: with an errno where the system failed, without an errno where decoding
    failed.
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
    """Checks both magics and returns the length of the footer."""
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
        raise BadParquet("footer_absurd", f"a footer of {footer_bytes} bytes takes {most}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
