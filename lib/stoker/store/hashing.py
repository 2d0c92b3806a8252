"""The sha256 of a file as the disk holds it, not as the page cache remembers it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.store.direct import DirectReader, aligned_buffer
from stoker.store.errors import storage_errors
from stoker.store.files import opened

BUFFER_BYTES = 2 * 1024 * 1024


class Hasher(Protocol):
    """As hashlib's and others' are."""

    def update(self, data: Any, /) -> object:
        """Take in more bytes."""


@dataclass(frozen=True)
class FileHash:
    """What was read: sha256 in hex, size in bytes, and whether the page cache may have answered."""

    sha256: str
    size: int
    cached: bool


def hash_file(
    path: Path,
    *,
    past_cache: bool = True,
    progress: Callable[[int], None] | None = None,
    also: Hasher | None = None,
) -> FileHash:
    """Hash a file, past the page cache where the file system allows it; progress gets the bytes read so far.

    `also` is fed the same bytes.

    `cached` is true when O_DIRECT was refused or not wanted: nothing may be convicted on such a hash.
    FileNotFoundError passes through; any other failure to read is a StorageError.
    """
    with storage_errors("read", path), opened(path, os.O_RDONLY) as descriptor:
        return hash_opened(descriptor, past_cache=past_cache, progress=progress, also=also)


def hash_opened(
    descriptor: int,
    *,
    past_cache: bool = True,
    progress: Callable[[int], None] | None = None,
    also: Hasher | None = None,
) -> FileHash:
    """The same for a file that is open for reading, from its first byte; raises OSError as it comes."""
    digest = hashlib.sha256()
    reader = DirectReader(descriptor, past_cache=past_cache)
    with aligned_buffer(BUFFER_BYTES) as buffer:
        for chunk in reader.chunks(buffer):
            digest.update(chunk)
            if also is not None:
                also.update(chunk)
            if progress is not None:
                progress(reader.done)
    return FileHash(digest.hexdigest(), reader.done, reader.cached)
