"""Hashes past the page cache, in a thread, behind the build that reads or writes a file.

What is finished with can be read back while the rest is still under way, so that at the end little is left to
wait for. A byte is read once, after it was given up: for a file being written that is after it was made
durable, for one being read after the reader has passed it.
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

from stoker.kit.throttle import heartbeat
from stoker.store.direct import DirectReader
from stoker.store.errors import storage_errors
from stoker.store.hashing import FileHash

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ReadBack(FileHash):
    """What was read, with its xxh3_128 too; sha256 is empty where only that was wanted."""

    xxh3: str


@dataclass
class _Followed:
    """One file, read up to `upto`; the other fields belong to the thread."""

    progress: Callable[[int], None]
    upto: int = 0
    descriptor: int = -1
    reader: DirectReader | None = None
    sha256: Any = field(default_factory=hashlib.sha256)
    xxh3: Any = field(default_factory=xxhash.xxh3_128)


class Trail:
    """Follows files with one thread; what fails there is raised by `finish`. Close it whatever happens.

    Without `sha256` it tells their xxh3_128 alone.
    """

    def __init__(self, report: Callable[..., None], *, sha256: bool = True) -> None:
        self._report, self._sha256 = report, sha256
        self._files: dict[Path, _Followed] = {}
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "trail")
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # page-aligned, as O_DIRECT demands

    def advance(self, path: Path, upto: int) -> None:
        """These first bytes of the file are finished with; may be called from any one thread at a time."""
        file = self._followed(path)
        if upto - file.upto >= BUFFER_BYTES:
            file.upto = upto
            # Where this fails finish() reads on from the same place, and fails itself or does not.
            self._thread.submit(self._read, path, upto)

    def finish(self, path: Path) -> Future[ReadBack]:
        """The file is finished with as a whole: its hash, size and whether the cache may have answered.

        The future raises StorageError, FileNotFoundError.
        """
        return self._thread.submit(self._finish, path)

    def close(self) -> None:
        """Stop, wherever it is."""
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
                return file.reader  # all at the end: it would drop from the cache what another reads from it
            for chunk in file.reader.chunks(self._buffer, end):
                if self._sha256:
                    file.sha256.update(chunk)
                file.xxh3.update(chunk)
                file.progress(file.reader.done)
                if self._stopped.is_set():
                    break
            return file.reader
