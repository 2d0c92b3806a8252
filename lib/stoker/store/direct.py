"""Reads, hashes, writes and copies files past the page cache, or through it where O_DIRECT is impossible.

O_DIRECT needs aligned memory, offsets and lengths. Unaligned bytes (the end of a file) go through the cache,
and are dropped from the cache once durable: staging a corpus must not evict the pages that training reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.store.errors import FULL, StorageError, storage_errors
from stoker.store.files import move_durably, opened, unlink_durably

ALIGNMENT = 4096
CHUNK = 4 << 20  # at 4 MiB a direct read or write costs no more than its bytes, on disks and over a network
PART = ".part-"  # prefix of the name of an unfinished copy
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
HASH_BUFFER_BYTES = 2 << 20

Progress = Callable[[int], None]


@contextlib.contextmanager
def aligned_buffer(size: int) -> Iterator[memoryview]:
    """Allocates memory aligned for O_DIRECT, for the length of a block."""
    with mmap.mmap(-1, size) as buffer, memoryview(buffer) as view:  # anonymous memory is page-aligned
        yield view


class DirectReader:
    """Reads a file from `start`, a multiple of ALIGNMENT; `cached`: the bytes may be the page cache's."""

    def __init__(self, descriptor: int, *, start: int = 0, past_cache: bool = True) -> None:
        assert start % ALIGNMENT == 0, start
        self.cached = not (past_cache and _set_direct(descriptor, on=True))
        self.done = start
        self._descriptor = descriptor
        if self.cached:
            _forget(self._descriptor)

    def chunks(self, buffer: memoryview, end: int | None = None) -> Iterator[memoryview]:
        """Yields the bytes up to `end` or the file's end, each chunk valid until the next; raises OSError."""
        while end is None or self.done < end:
            # Direct reads need aligned offsets: after a short read, part of the last block is read again.
            skip = self.done % ALIGNMENT
            got = self._read(buffer, self.done - skip) - skip
            if got <= 0:
                break
            if end is not None:
                got = min(got, end - self.done)
            self.done += got
            with buffer[skip : skip + got] as chunk:
                yield chunk
            if self.cached:
                _forget(self._descriptor)

    def _read(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as error:
            if self.cached or error.errno not in _REFUSED:
                raise
        self.cached = True  # the file system accepted the flag and refuses the read
        _set_direct(self._descriptor, on=False)
        _forget(self._descriptor)
        return os.preadv(self._descriptor, [buffer], offset)


class PastCacheFile(io.RawIOBase):
    """A file read past the page cache, for decoders that want a file object; raises OSError."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._buffer = memoryview(mmap.mmap(-1, HASH_BUFFER_BYTES))  # page-aligned, as O_DIRECT demands
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._reader = DirectReader(self._descriptor)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = os.fstat(self._descriptor).st_size
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: size}[whence] + offset
        return self._position

    def readinto(self, target: Any) -> int:
        """Fills target from the current position; returns the bytes read, fewer only at the file's end."""
        view = memoryview(target).cast("B")
        begin = self._reader.done = self._position
        for chunk in self._reader.chunks(self._buffer, begin + len(view)):
            view[self._position - begin : self._reader.done - begin] = chunk
            self._position = self._reader.done
        return self._position - begin

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class DirectWriter:
    """Appends to a file from `start`. Appended bytes are durable only after commit()."""

    def __init__(self, descriptor: int, *, start: int = 0) -> None:
        self.done = start
        self._descriptor = descriptor
        self._direct = _set_direct(descriptor, on=True)

    def append(self, chunk: memoryview) -> None:
        """Writes the whole chunk; raises OSError."""
        while chunk:
            if self._direct and (self.done % ALIGNMENT or len(chunk) % ALIGNMENT):
                self._direct = False  # at the end of the file, or after a short read
                _set_direct(self._descriptor, on=False)
            try:
                written = os.pwrite(self._descriptor, chunk, self.done)
            except OSError as error:
                if not self._direct or error.errno not in _REFUSED:
                    raise
                self._direct = False
                _set_direct(self._descriptor, on=False)
                continue
            self.done += written
            chunk = chunk[written:]

    def commit(self) -> None:
        """Makes the appended bytes durable and drops them from the page cache."""
        os.fsync(self._descriptor)
        _forget(self._descriptor)


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
    progress: Progress | None = None,
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
    progress: Progress | None = None,
    also: Hasher | None = None,
) -> FileHash:
    """Returns the hash of an open file, from its first byte; raises OSError."""
    digest = hashlib.sha256()
    reader = DirectReader(descriptor, past_cache=past_cache)
    with aligned_buffer(HASH_BUFFER_BYTES) as buffer:
        for chunk in reader.chunks(buffer):
            digest.update(chunk)
            if also is not None:
                also.update(chunk)
            if progress is not None:
                progress(reader.done)
    return FileHash(digest.hexdigest(), reader.done, reader.cached)


class DiskFullError(StorageError):
    """The target disk has no room; the caller tries again when space is free."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; free some space: Stoker continues by itself", errno.ENOSPC)


def insist_on_room(folder: Path, size: int, floor: int) -> None:
    """Raises DiskFullError where `size` more bytes would leave less than `floor` bytes free."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < size + floor:
        rest = f" and {floor} to stay free (stage.free_floor)" if floor else ""
        raise DiskFullError(f"{folder}: {free} bytes free, {size} needed{rest}")


def copy(source: Path, target: Path, progress: Progress = lambda _: None) -> None:
    """Copies a file's bytes and makes them durable (not the directory entry); removes a partial copy.

    Raises DiskFullError when the disk is full, else OSError.
    """
    try:
        with (
            opened(source, os.O_RDONLY | os.O_NOFOLLOW) as reading,
            opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as writing,
            aligned_buffer(CHUNK) as buffer,
        ):
            writer = DirectWriter(writing)
            for chunk in DirectReader(reading).chunks(buffer):
                writer.append(chunk)
                progress(writer.done)
            writer.commit()
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in FULL:
            raise DiskFullError(f"{target}: {error.strerror}") from error
        raise


def move(source: Path, target: Path, progress: Progress = lambda _: None) -> None:
    """Moves a file durably, also to another file system; the source is unlinked after the target is durable.

    One with other names is copied: who writes to it by another name leaves the target alone.
    Raises FileExistsError where the target exists, else OSError.
    """
    try:
        if source.lstat().st_nlink == 1:
            move_durably(source, target)
            return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.unlink(missing_ok=True)
    copy(source, temporary, progress)
    move_durably(temporary, target)
    unlink_durably(source)


def _set_direct(descriptor: int, *, on: bool) -> bool:
    """Switches O_DIRECT of an open file; returns False where the file system does not support O_DIRECT."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def _forget(descriptor: int) -> None:
    """Drops the file's clean pages from the page cache."""
    with contextlib.suppress(OSError):  # advice only; a pipe takes none
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
