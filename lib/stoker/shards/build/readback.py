"""Hashes past the page cache, in a thread, behind whoever reads or writes a file.

What is finished with can be read back while the rest is still under way, so that at the end little is left to
wait for. A byte is read once, after it was given up: for a file being written that is after it was made
durable, for one being read after the reader has passed it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from stoker.kit.workers.heartbeat import heartbeat
from stoker.store.direct import DirectReader, aligned_buffer
from stoker.store.errors import storage_errors
from stoker.store.hashing import FileHash

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ReadBack(FileHash):
    """What was read, with its xxh3_128 too; sha256 is empty where only that was wanted."""

    xxh3: str


class Trail:
    """Follows files with one thread; what fails there is raised by `finish`. Close it whatever happens.

    Without `sha256` it tells their xxh3_128 alone.
    """

    def __init__(self, report: Callable[..., None], *, sha256: bool = True) -> None:
        self._report, self._sha256 = report, sha256
        self._files: dict[Path, _Followed] = {}
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "trail")
        self._held = ExitStack()
        self._buffer = self._held.enter_context(aligned_buffer(BUFFER_BYTES))

    def advance(self, path: Path, upto: int) -> None:
        """These first bytes of the file are finished with; may be called from any one thread at a time."""
        file = self._followed(path)
        if upto - file.upto >= BUFFER_BYTES:
            file.upto = upto
            self._thread.submit(file.follow)

    def finish(self, path: Path) -> Future[ReadBack]:
        """The file is finished with as a whole: its hash, size and whether the cache may have answered.

        The future raises StorageError, FileNotFoundError.
        """
        return self._thread.submit(self._followed(path).finish)

    def close(self) -> None:
        """Stop, wherever it is."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()
        self._held.close()

    def _followed(self, path: Path) -> _Followed:
        if path not in self._files:
            told = heartbeat(self._report, path.name)
            self._files[path] = _Followed(path, self._buffer, told, self._stopped, sha256=self._sha256)
        return self._files[path]


class _Followed:
    """One file, read up to `upto`; its methods but close() belong to the thread."""

    def __init__(
        self,
        path: Path,
        buffer: memoryview,
        progress: Callable[[int], None],
        stopped: threading.Event,
        *,
        sha256: bool,
    ) -> None:
        self.path = path
        self.upto = 0
        self._buffer = buffer
        self._progress = progress
        self._stopped = stopped
        self._digest = hashlib.sha256() if sha256 else None
        self._xxh3 = xxhash.xxh3_128()
        self._descriptor = -1
        self._reader: DirectReader | None = None
        self._failed: BaseException | None = None

    def follow(self) -> None:
        """Read up to where it is finished with; a failure is kept for finish()."""
        try:
            self._read(self.upto)
        except Exception as error:  # noqa: BLE001 - finish() raises it
            self._failed = error

    def finish(self) -> ReadBack:
        """Read to the end."""
        if self._failed is not None:
            raise self._failed
        reader = self._read(None)
        self.close()
        sha256 = "" if self._digest is None else self._digest.hexdigest()
        return ReadBack(sha256, reader.done, reader.cached, self._xxh3.hexdigest())

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self, end: int | None) -> DirectReader:
        with storage_errors("read", self.path):
            if self._reader is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._reader = DirectReader(self._descriptor)
            if self._reader.cached and end is not None:
                return self._reader  # all at the end: it would drop from the cache what another reads from it
            for chunk in self._reader.chunks(self._buffer, end):
                if self._digest is not None:
                    self._digest.update(chunk)
                self._xxh3.update(chunk)
                self._progress(self._reader.done)
                if self._stopped.is_set():
                    break
            return self._reader
