"""Hashes files as the disk holds them, not as the page cache does."""

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
    """The interface of hashlib's objects."""

    def update(self, data: Any, /) -> object:
        """Adds bytes to the hash."""


@dataclass(frozen=True)
class FileHash:
    sha256: str  # in hex
    size: int  # in bytes
    cached: bool  # the page cache may have given the bytes: no evidence against the file


def hash_file(
    path: Path,
    *,
    past_cache: bool = True,
    progress: Callable[[int], None] | None = None,
    also: Hasher | None = None,
) -> FileHash:
    """Returns the hash of a file, read past the page cache where the file system allows it.

    `progress` gets the number of bytes read so far, `also` the same bytes as the hash. FileNotFoundError
    passes through; any other failure to read raises StorageError.
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
    """Returns the hash of an open file, from its first byte; raises OSError."""
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
