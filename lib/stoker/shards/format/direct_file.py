"""A file read past the page cache, for decoders that want a file object."""

from __future__ import annotations

import errno
import io
import mmap
import os
from pathlib import Path
from typing import Any

_ALIGNMENT = 4096
_BUFFER_BYTES = 1 << 20


class PastCacheFile(io.RawIOBase):
    """Read-only; by O_DIRECT, or after dropping the file's cached pages where that is refused (`cached`).

    Each read fills what was asked for unless the file ends. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.cached = False
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # page-aligned, as O_DIRECT demands
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self.cached = True
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._size = os.fstat(self._descriptor).st_size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, target: Any) -> int:
        """Fill target from the current position; returns the bytes read, fewer only at the file's end."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view):
            start = self._position - self._position % _ALIGNMENT
            lead = self._position - start
            got = os.preadv(self._descriptor, [self._buffer], start) - lead
            if got <= 0:
                break
            taken = min(got, len(view) - done)
            view[done : done + taken] = self._buffer[lead : lead + taken]
            done += taken
            self._position += taken
        return done

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
