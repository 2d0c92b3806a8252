"""A file read past the page cache, for decoders that want a file object."""

from __future__ import annotations

import io
import mmap
import os
from pathlib import Path
from typing import Any

from stoker.store.direct import DirectReader

_BUFFER_BYTES = 1 << 20


class PastCacheFile(io.RawIOBase):
    """Read-only; each read fills what was asked for unless the file ends. Raises OSError."""

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
