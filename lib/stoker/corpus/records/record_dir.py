"""A directory of records, one for each path of a dataset; a file is parsed again only after it changed.

Built for 50,000 records: a look at an unchanged directory costs one stat of the directory, because a record
is always replaced by a rename, which changes the directory's time.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stoker.store.layout import record_name
from stoker.store.record import RecordDamaged, parse_record

T = TypeVar("T")
Damaged = Callable[[Path, RecordDamaged], object]
Parse = Callable[[Mapping[str, Any]], T]
Stamp = tuple[int, int, int]  # device, inode, mtime in ns

# A directory's mtime stays the same for a tick of the kernel while entries come and go; on a file system with
# whole seconds, for up to two seconds.
TICK_NS, SECONDS_NS = 100_000_000, 2_100_000_000
LOOK_SHARE = 0.1  # of the time, at most, that a patient reader spends looking
SLICE = 1000  # records that one look of a patient reader reads
SUFFIX = ".json"


def ignore(file: Path, error: RecordDamaged) -> None:
    """Leaves a damaged record to the directory's owner."""


class _Lazy(dict[str, T]):
    """The records read so far; get() of a record that is still to be read reads it at once."""

    def __init__(self, fetch: Callable[[str], None]) -> None:
        super().__init__()
        self._fetch = fetch

    def get(self, path: str, default: Any = None) -> Any:
        if path not in self:
            self._fetch(path)
        return super().get(path, default)


class RecordDir(Generic[T]):
    """The records of one dataset in one directory, parsed by `parse`; records of other datasets are left out.

    A `patient` reader of many records sees a change late, by about a second for 50,000, and does not spend
    all its time looking while many records change one by one. `due` is the time of its next look. Each look
    reads up to SLICE records; while the reader is `behind`, get() of a path reads that record at once.
    """

    def __init__(self, directory: Path, dataset: str, parse: Parse[T], *, patient: bool = False) -> None:
        self._directory, self._dataset, self._parse = directory, dataset, parse
        self._patient = patient
        self._found: dict[str, T] = _Lazy(self._fetch) if patient else {}
        self._unread: dict[str, None] = {}  # the names of records that are still to be read
        # Key: a number for the name; value: the file's inode above its mtime. Names and tuples would take
        # three times the memory.
        self._stamps: dict[int, int] = {}
        self._folder: Stamp | None = None  # the directory's stamp at which `_found` was complete
        self._next_look = -math.inf
        self._changed: set[str] = set()

    def read(self) -> dict[str, T]:
        """Returns every whole record by its path, always in the same dictionary.

        A damaged record is left out: only the directory's owner may move it aside. Raises DataError for a
        whole record that this version cannot parse.
        """
        folder, now = _stamp_of(self._directory), time.monotonic()
        if not self._unread:
            is_known = folder == self._folder and folder is not None
            if is_known or (self._patient and now < self._next_look):
                return self._found
            at_rest = folder if folder is not None and _is_at_rest(folder[2]) else None
            self._folder = None  # in case the look fails midway
            self._look(now)
            self._folder = at_rest
        self._load(list(islice(self._unread, SLICE if self._patient else None)))
        return self._found

    @property
    def behind(self) -> bool:
        return bool(self._unread)

    @property
    def due(self) -> float:
        """Monotonic time of the next look that no event announces: -inf for at once, inf for none."""
        if self._unread:
            return -math.inf
        return self._next_look if self._folder is None else math.inf

    def take_changed(self) -> set[str]:
        """Returns the paths whose record appeared, changed or vanished since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _look(self, began: float) -> None:
        """Finds the records to read again and drops the records that vanished."""
        changed, met = [], set()
        for entry in _entries(self._directory):
            number = _number(entry.name)
            met.add(number)
            if not _is_as_stamped(entry, self._stamps.get(number)):
                changed.append(entry.name)
        if gone := self._stamps.keys() - met:
            self._drop(gone)
            for number in gone:
                del self._stamps[number]
        self._unread = dict.fromkeys(sorted(changed))
        ended = time.monotonic()
        self._next_look = ended + max(TICK_NS / 1e9, (ended - began) / LOOK_SHARE)

    def _fetch(self, path: str) -> None:
        """Reads the record of a path now if it is still to be read."""
        name = _name(self._dataset, path)
        if name in self._unread:
            self._load([name])

    def _load(self, names: list[str]) -> None:
        lost = set()
        for name, stamp, found in _records(self._directory, names, self._dataset, self._parse, ignore):
            number = _number(name)
            if found is not None:
                self._found[found[0]] = found[1]
                self._changed.add(found[0])
            elif number in self._stamps:
                lost.add(number)
            self._stamps[number] = stamp
        if lost:
            self._drop(lost)
        for name in names:  # where reading failed midway, all are read again
            del self._unread[name]

    def _drop(self, names: Set[int]) -> None:
        """Drops the records with these numbers; slow with many records, and rare."""
        for path in [path for path in self._found if _number(_name(self._dataset, path)) in names]:
            del self._found[path]
            self._changed.add(path)


def each_record(
    directory: Path, dataset: str, parse: Parse[T], damaged: Damaged = ignore
) -> Iterator[tuple[str, T]]:
    """Yields every whole record of a dataset with its path, and keeps none of them.

    Damaged records are left out and passed to `damaged`. Raises DataError as RecordDir does.
    """
    names = sorted(entry.name for entry in _entries(directory))
    for _, _, found in _records(directory, names, dataset, parse, damaged):
        if found is not None:
            yield found


def read_records(directory: Path, dataset: str, parse: Parse[T], damaged: Damaged = ignore) -> dict[str, T]:
    """Returns the records of each_record by path, in path order."""
    gc.disable()  # collections take a quarter of the time with many records, and find nothing
    try:
        found = dict(each_record(directory, dataset, parse, damaged))
        return {path: found[path] for path in sorted(found)}
    finally:
        gc.freeze()  # the records live long: later collections skip them
        gc.enable()


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the record files of a directory; nothing where it does not exist."""
    try:
        with storage_errors("list", directory), os.scandir(directory) as entries:
            yield from (e for e in entries if e.name.endswith(SUFFIX) and not e.name.startswith("."))
    except FileNotFoundError:
        return


def _records(
    directory: Path, names: list[str], dataset: str, parse: Parse[T], damaged: Damaged
) -> Iterator[tuple[str, int, tuple[str, T] | None]]:
    """Yields the name and the stamp of each record that exists, and its path with the parsed record.

    The last is None for a damaged record and for a record of another dataset.
    """
    if not names:
        return
    where = os.fspath(directory)
    with storage_errors("read", directory), opened(directory, os.O_RDONLY | os.O_DIRECTORY) as folder:
        for name in names:
            try:
                data, stamp = _read(folder, name)
            except FileNotFoundError:  # replaced or moved aside by its owner meanwhile
                continue
            found = None
            try:
                record = parse_record(data, f"{where}/{name}")
                if record.get("dataset") == dataset:
                    found = sys.intern(str(record["path"])), parse(record)
            except RecordDamaged as error:
                damaged(directory / name, error)
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{directory / name}: not a record this version reads ({error!r}); "
                    "was it written by a newer Stoker? Upgrade, or move it out of the folder"
                ) from error
            yield name, stamp, found


def _name(dataset: str, path: str) -> str:
    return f"{record_name(dataset, path)}{SUFFIX}"


def _number(name: str) -> int:
    """Returns a number that identifies a file name in less memory than a full hash."""
    return hash(name) & ((1 << 48) - 1)


def _stamp(about: os.stat_result) -> int:
    return about.st_ino << 64 | about.st_mtime_ns


def _is_as_stamped(entry: os.DirEntry[str], stamp: int | None) -> bool:
    try:
        return _stamp(entry.stat(follow_symlinks=False)) == stamp
    except FileNotFoundError:  # replaced this instant
        return False


def _is_at_rest(mtime_ns: int) -> bool:
    """Whether the directory's time is old enough that any further change will alter it."""
    grain = TICK_NS if mtime_ns % 1_000_000_000 else SECONDS_NS
    return not 0 <= time.time_ns() - mtime_ns < grain


def _read(folder: int, name: str) -> tuple[bytes, int]:
    """Returns a file's bytes, and the stamp of the descriptor that they were read from."""
    # Without O_NONBLOCK a fifo in the directory would block this reader for ever.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(descriptor)
        return os.read(descriptor, about.st_size), _stamp(about)
    finally:
        os.close(descriptor)


def _stamp_of(path: Path) -> Stamp | None:
    """Returns what changes with a directory or with a replaced file; None where it is missing."""
    try:
        with storage_errors("read", path):
            about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino, about.st_mtime_ns


def when_changed(file: Path, parse: Callable[[], T]) -> Callable[[], T]:
    """Returns a reader of one record that parses it only after its file was replaced or removed."""
    cached = lru_cache(maxsize=1)(lambda stamp: parse())
    return lambda: cached(_stamp_of(file))
