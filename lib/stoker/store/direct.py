"""Reads and writes open files past the page cache, and through the cache where O_DIRECT is impossible.

O_DIRECT needs aligned memory, offsets and lengths. Unaligned bytes (the end of a file) go through the cache,
and are dropped from the cache once durable: staging a corpus must not evict the pages that training reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALIGNMENT = 4096
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_BUFFER_BYTES = 1 << 20


@contextlib.contextmanager
def aligned_buffer(size: int) -> Iterator[memoryview]:
    """Allocates memory aligned for O_DIRECT, for the length of a block."""
    with (
        mmap.mmap(-1, size) as buffer,
        memoryview(buffer) as view,
    ):  # anonymous memory is page-aligned
        yield view


class DirectReader:
    """Reads a file from `start`, a multiple of ALIGNMENT; `cached`: the bytes may be the page cache's."""

    def __init__(self, descriptor: int, *, start: int = 0, past_cache: bool = True) -> None:
        assert start % ALIGNMENT == 0, start
        self.cached = not (past_cache and _set_direct(descriptor, on=True))
        self.done = start
        self._descriptor = descriptor
        if self.cached:
            self._forget()

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
                self._forget()

    def _read(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as error:
            if self.cached or error.errno not in _REFUSED:
                raise
        self.cached = True  # the file system accepted the flag and refuses the read
        _set_direct(self._descriptor, on=False)
        self._forget()
        return os.preadv(self._descriptor, [buffer], offset)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):  # advice only; a pipe takes none
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class PastCacheFile(io.RawIOBase):
    """A file read past the page cache, for decoders that want a file object.

    Read-only; each read fills what was asked for unless the file ends. Raises OSError."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES))  # page-aligned, as O_DIRECT demands
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
        """Fill target from the current position; returns the bytes read, fewer only at the file's end."""
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
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


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
