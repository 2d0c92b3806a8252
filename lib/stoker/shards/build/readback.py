"""Hashes files past the page cache, in a thread, while the build still reads or writes them.

Finished parts are read back while the rest is in work, so that little remains to wait for at the end. A byte
is read once, after the build is done with it: in an output file after it was made durable, in an input file
after the reader has passed it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from stoker.kit.workers.child import heartbeat
from stoker.store.direct import DirectReader, FileHash
from stoker.store.errors import storage_errors

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ReadBack(FileHash):
    """The hash of the bytes read, with their xxh3_128; sha256 is empty in a trail without sha256."""

    xxh3: str


@dataclass
class _Followed:
    """One file, to be read up to `upto`; the other fields belong to the thread."""

    progress: Callable[[int], None]
    upto: int = 0
    descriptor: int = -1
    reader: DirectReader | None = None
    sha256: Any = field(default_factory=hashlib.sha256)
    xxh3: Any = field(default_factory=xxhash.xxh3_128)


class Trail:
    """Hashes files in one thread; `finish` raises the thread's errors. Always close it.

    Without `sha256` it computes xxh3_128 alone.
    """

    def __init__(self, report: Callable[..., None], *, sha256: bool = True) -> None:
        self._report, self._sha256 = report, sha256
        self._files: dict[Path, _Followed] = {}
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "trail")
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # page-aligned, as O_DIRECT demands

    def advance(self, path: Path, upto: int) -> None:
        """Allows reading back the first `upto` bytes; callable from any one thread at a time."""
        file = self._followed(path)
        if upto - file.upto >= BUFFER_BYTES:
            file.upto = upto
            # After a failure finish() continues at the same place, and fails itself or not.
            self._thread.submit(self._read, path, upto)

    def finish(self, path: Path) -> Future[ReadBack]:
        """Returns a future of the whole file's hash, size and whether the cache may have answered.

        The future raises StorageError, FileNotFoundError.
        """
        return self._thread.submit(self._finish, path)

    def close(self) -> None:
        """Stops the thread, also in the middle of a file."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        for file in self._files.values():
            if file.descriptor >= 0:
                os.close(file.descriptor)

    def _followed(self, path: Path) -> _Followed:
        if path not in self._files:
            self._files[path] = _Followed(heartbeat(self._report, path.name))
        return self._files[path]

    def _finish(self, path: Path) -> ReadBack:
        file, reader = self._followed(path), self._read(path, None)
        sha256 = file.sha256.hexdigest() if self._sha256 else ""
        return ReadBack(sha256, reader.done, reader.cached, file.xxh3.hexdigest())

    def _read(self, path: Path, end: int | None) -> DirectReader:
        file = self._followed(path)
        with storage_errors("read", path):
            if file.reader is None:
                file.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                file.reader = DirectReader(file.descriptor)
            if file.reader.cached and end is not None:
                # The whole file is read at the end: a read now would evict pages that the build reads next.
                return file.reader
            for chunk in file.reader.chunks(self._buffer, end):
                if self._sha256:
                    file.sha256.update(chunk)
                file.xxh3.update(chunk)
                file.progress(file.reader.done)
                if self._stopped.is_set():
                    break
            return file.reader
