"""The sha256 of a file as the disk holds it, not as the page cache remembers it."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.store.errors import storage_errors
from stoker.store.files import opened

BUFFER_BYTES = 2 * 1024 * 1024
_ALIGNMENT = 4096


@dataclass(frozen=True)
class FileHash:
    """What was read: sha256 in hex, size in bytes, and whether the page cache may have answered."""

    sha256: str
    size: int
    cached: bool


def hash_file(
    path: Path, *, past_cache: bool = True, progress: Callable[[int], None] | None = None
) -> FileHash:
    """Hash a file, past the page cache where the file system allows it; progress gets the bytes read so far.

    `cached` is true when O_DIRECT was refused or not wanted: nothing may be convicted on such a hash.
    FileNotFoundError passes through; any other failure to read is a StorageError.
    """
    with storage_errors("read", path):
        if past_cache:
            try:
                return _hash(path, os.O_DIRECT, progress)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
        return _hash(path, 0, progress)


def _hash(path: Path, direct: int, progress: Callable[[int], None] | None) -> FileHash:
    digest = hashlib.sha256()
    size = 0
    with (
        opened(path, os.O_RDONLY | direct) as descriptor,
        mmap.mmap(-1, BUFFER_BYTES) as buffer,  # anonymous memory is page-aligned, as O_DIRECT demands
        memoryview(buffer) as view,
    ):
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while True:
            # O_DIRECT wants aligned offsets too; after a short read the last block is read again in part.
            start = size - size % _ALIGNMENT
            got = os.preadv(descriptor, [view], start) - (size - start)
            if got <= 0:
                break
            digest.update(view[size - start : size - start + got])
            size += got
            if progress is not None:
                progress(size)
    return FileHash(digest.hexdigest(), size, cached=not direct)
