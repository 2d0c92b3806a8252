"""Commits of a build: data is made durable first, then the record that claims it; recovery cuts the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import Books
from stoker.shards.build.shard_writer import GrowingFile
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import make_dir, unlink_durably
from stoker.store.record import body_of, read_record, values_of, write_record

PROGRESS = "progress.json"


@dataclass(frozen=True)
class Progress:
    """A commit: the next row to read, every file's length and the books up to there."""

    key: str
    origin: tuple[int, int, int]  # inode, mtime and size: tells a restaged parquet from the first
    row_group: int = 0
    row: int = 0
    files: Mapping[str, int] | None = None  # length in bytes by name
    books: Mapping[str, Any] | None = None
    elapsed_s: float = 0.0  # spent on this build so far


def origin_of(parquet: Path) -> tuple[int, int, int]:
    """Returns inode, modification time and size of the file that a build reads."""
    with storage_errors("read", parquet):
        found = parquet.stat()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def recover(directory: Path, key: str, origin: tuple[int, int, int]) -> Progress:
    """Returns the last commit of a building directory after restoring the directory to it, or to nothing.

    Files that the commit does not name are deleted, longer files are cut. A shorter file, another key or
    another parquet means starting over. Raises StorageError.
    """
    make_dir(directory)
    progress = _last_commit(directory, key, origin)
    lengths = dict(progress.files or {})
    with storage_errors("recover", directory):
        found = {entry.name: entry.stat().st_size for entry in directory.iterdir()}
        if any(found.get(name, -1) < length for name, length in lengths.items()):
            progress, lengths = Progress(key, origin), {}
        if not lengths:
            # First and durably: data written from here on must never meet a record of other data.
            unlink_durably(directory / PROGRESS)
            found.pop(PROGRESS, None)
        for name, size in found.items():
            if name not in lengths and name != PROGRESS:
                (directory / name).unlink()
            elif name in lengths and size > lengths[name]:
                os.truncate(directory / name, lengths[name])
    return progress


def _last_commit(directory: Path, key: str, origin: tuple[int, int, int]) -> Progress:
    try:
        record = read_record(directory / PROGRESS)
        if (record["key"], tuple(record["origin"])) == (key, origin):
            Books.from_mapping(record["books"])
            return Progress(**values_of(Progress, record) | {"origin": origin})
    except (FileNotFoundError, DataError, LookupError, TypeError, ValueError, AttributeError):
        pass  # no reliable commit: the build starts over, which costs time only
    return Progress(key, origin)


class Committer:
    """Makes commits in its own thread, one at a time, while the builder encodes.

    The thread calls `durable` with the length up to which each file of a commit may be read back. An error in
    the thread is raised by the builder's next `start` or `wait`.
    """

    def __init__(
        self, directory: Path, report: Callable[..., None], durable: Callable[[Path, int], None]
    ) -> None:
        self._directory, self._report, self._durable = directory, report, durable
        self._thread = ThreadPoolExecutor(1, "commit")
        self._running: Future[None] | None = None

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    @property
    def busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def start(self, files: list[tuple[GrowingFile, bool]], progress: Progress) -> None:
        """Starts a commit of these files (True: close the file) up to the lengths in progress."""
        self.wait()
        self._running = self._thread.submit(self._commit, files, progress)

    def wait(self) -> None:
        """Waits until no commit is in flight."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    def _commit(self, files: list[tuple[GrowingFile, bool]], progress: Progress) -> None:
        self._report("phase", phase="commit")
        for file, finished in files:
            file.make_durable(close=finished)
        write_record(self._directory / PROGRESS, body_of(progress))
        for file, _ in files:
            self._durable(file.path, (progress.files or {}).get(file.path.name, 0))
        counts = {name: (progress.books or {}).get(name, 0) for name in ("rows", "documents", "tokens")}
        size = sum((progress.files or {}).values())
        self._report("commit", row_group=progress.row_group, row=progress.row, bytes=size, **counts)
