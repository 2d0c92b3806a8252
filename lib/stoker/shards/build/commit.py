"""How far a build has come, durably: data first, then the record that claims it; the rest is cut away."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.records.books import Books
from stoker.shards.build.shard_writer import GrowingFile
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import make_dir, unlink_durably
from stoker.store.record import body_of, read_record, values_of, write_record

PROGRESS = "progress.json"


@dataclass(frozen=True)
class Progress:
    """A commit: the next row to read, every file's length in bytes and the books up to there.

    `origin` tells a restaged parquet from the one begun with, `elapsed_s` is the time spent so far.
    """

    key: str
    origin: tuple[int, int, int]
    row_group: int = 0
    row: int = 0
    files: Mapping[str, int] | None = None
    books: Mapping[str, Any] | None = None
    elapsed_s: float = 0.0


def origin_of(parquet: Path) -> tuple[int, int, int]:
    """Inode, modification time and size of the file a build reads."""
    with storage_errors("read", parquet):
        found = parquet.stat()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def recover(directory: Path, key: str, origin: tuple[int, int, int]) -> Progress:
    """Bring a building directory back to its last commit, or to nothing, and say where to go on.

    Files the commit does not name go, longer ones are cut. A shorter one, another key or another parquet
    means starting over. Raises StorageError.
    """
    make_dir(directory)
    progress = _last_commit(directory, key, origin)
    lengths = dict(progress.files or {})
    with storage_errors("recover", directory):
        found = {entry.name: entry.stat().st_size for entry in directory.iterdir()}
        if any(found.get(name, -1) < length for name, length in lengths.items()):
            progress, lengths = Progress(key, origin), {}
        if not lengths:
            # First and for good: data written from here on must never meet a record of other data.
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
        pass  # no commit that can be relied on: the build starts over, which costs time only
    return Progress(key, origin)


class Committer:
    """Makes commits in a thread of its own, one at a time, while the builder encodes on.

    `durable` gets, in that thread, up to where each file of a commit may be read back. What fails in the
    thread is raised by the builder's next `start` or `wait`.
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
        """Whether a commit is in flight."""
        return self._running is not None and not self._running.done()

    def start(self, files: list[tuple[GrowingFile, bool]], progress: Progress) -> None:
        """Begin a commit of these files (True: to be closed) up to the lengths in progress."""
        self.wait()
        self._running = self._thread.submit(self._commit, files, progress)

    def wait(self) -> None:
        """Until no commit is in flight."""
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
