"""A folder of records, one for each path of a dataset; a file is parsed again only after it changed.

Made for 50,000 of them: a look at a folder where nothing changed costs one stat of the folder, for a record
is always replaced by a rename, which shows there.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stoker.store.names import record_name
from stoker.store.record import RecordDamaged, parse_record

T = TypeVar("T")
Damaged = Callable[[Path, RecordDamaged], None]
Parse = Callable[[Mapping[str, Any]], T]
FolderStamp = tuple[int, int, int]  # device, inode, mtime in ns

# A folder's time stamp stays the same for a tick of the kernel while entries come and go; where a file system
# keeps whole seconds only, for up to two of them.
TICK_NS, SECONDS_NS = 100_000_000, 2_100_000_000
LOOK_SHARE = 0.1  # of the time, at most, that a patient reader spends looking
MANY, SLICE = 1000, 1000  # records: how many make it worth it to be clever, how many are read at a time
SUFFIX = ".json"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class _Lazy(dict[str, T]):
    """The records read so far; one that is asked for by its path and still to be read is read then."""

    def __init__(self, fetch: Callable[[str], None]) -> None:
        super().__init__()
        self._fetch = fetch

    def get(self, path: str, default: Any = None) -> Any:
        if path not in self:
            self._fetch(path)
        return super().get(path, default)

    def __missing__(self, path: str) -> T:
        self._fetch(path)
        if path not in self:
            raise KeyError(path)
        return self[path]


class RecordDir(Generic[T]):
    """The records of one dataset in one folder, as `parse` reads them; those of other datasets are left out.

    A `patient` reader of many records sees a change late, by about a second for 50,000, and does not
    spend its days looking while many change one by one. `due` is when it should look again. It reads
    thousands of records a slice a look; while it is `behind`, one that is asked for by its path is read at
    once.
    """

    def __init__(self, directory: Path, dataset: str, parse: Parse[T], *, patient: bool = False) -> None:
        self._directory, self._dataset, self._parse = directory, dataset, parse
        self._patient = patient
        self._found: dict[str, T] = _Lazy(self._fetch) if patient else {}
        self._unread: dict[str, None] = {}  # the names of records that are still to be read
        # By the number of the name: the file's inode above its mtime. Names and tuples would take three times
        # the memory.
        self._stamps: dict[int, int] = {}
        self._folder: FolderStamp | None = None  # as it was when all that was found was true
        self._next_look = -math.inf
        self._changed: set[str] = set()

    def read(self, damaged: Damaged | None = None) -> dict[str, T]:
        """Return every whole record by its path, always in the same dictionary.

        A damaged one is left out and handed to `damaged`; only the folder's owner may move it aside.
        Raises DataError where a whole record is of a shape this version cannot read.
        """
        folder, now = self._stamp_folder(), time.monotonic()
        if not self._unread:
            is_known = folder == self._folder and folder is not None
            if is_known or (self._patient and now < self._next_look):
                return self._found
            is_at_rest = folder is None or _at_rest(folder[2])
            self._folder = None  # should the look break off
            self._look(now)
            self._folder = folder if is_at_rest else None
        most = SLICE if self._patient else len(self._unread)
        self._load([self._unread.popitem()[0] for _ in range(min(most, len(self._unread)))], damaged)
        return self._found

    @property
    def behind(self) -> bool:
        """Whether records are still to be read."""
        return bool(self._unread)

    @property
    def due(self) -> float:
        """When a look is due that no event will announce, monotonic seconds; inf when none is."""
        if self._unread:
            return -math.inf
        return self._next_look if self._folder is None else math.inf

    def take_changed(self) -> set[str]:
        """The paths whose record came, changed or went since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _look(self, began: float) -> None:
        """Find the records to read again; forget those that went."""
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
        self._unread = dict.fromkeys(sorted(changed, reverse=True))
        ended = time.monotonic()
        self._next_look = ended + max(TICK_NS / 1e9, (ended - began) / LOOK_SHARE)

    def _fetch(self, path: str) -> None:
        """Read the record of a path at once, if it is one of those still to be read."""
        name = _name(self._dataset, path)
        if name in self._unread:
            del self._unread[name]
            self._load([name], None)

    def _load(self, names: list[str], damaged: Damaged | None) -> None:
        folder, self._folder = self._folder, None  # should reading break off, the next look finds the rest
        lost = set()
        tell = damaged or (lambda *_: None)
        with uncollected(len(names)):
            for name, stamp, found in _records(self._directory, names, self._dataset, self._parse, tell):
                number = _number(name)
                if found is not None:
                    self._found[found[0]] = found[1]
                    self._changed.add(found[0])
                elif number in self._stamps:
                    lost.add(number)
                self._stamps[number] = stamp
        if lost:
            self._drop(lost)
        self._folder = folder

    def _drop(self, names: Set[int]) -> None:
        """Forget the records of these names; that takes a while with many, and hardly ever happens."""
        for path in [path for path in self._found if _number(_name(self._dataset, path)) in names]:
            del self._found[path]
            self._changed.add(path)

    def _stamp_folder(self) -> FolderStamp | None:
        try:
            with storage_errors("look at", self._directory):
                about = self._directory.stat()
        except FileNotFoundError:
            return None
        return about.st_dev, about.st_ino, about.st_mtime_ns


def each_record(
    directory: Path, dataset: str, parse: Parse[T], damaged: Damaged | None = None
) -> Iterator[tuple[str, T]]:
    """Yield every whole record of a dataset with its path, and keep nothing of it.

    Damaged ones are left out and handed to `damaged`. Raises DataError as a RecordDir does.
    """
    names = sorted(entry.name for entry in _entries(directory))
    for _, _, found in _records(directory, names, dataset, parse, damaged or (lambda *_: None)):
        if found is not None:
            yield found


def read_records(
    directory: Path, dataset: str, parse: Parse[T], damaged: Damaged | None = None
) -> dict[str, T]:
    """Return what each_record yields, by path, in path order."""
    with uncollected():
        found = dict(each_record(directory, dataset, parse, damaged))
        return {path: found[path] for path in sorted(found)}


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The records in a folder; none where it does not exist."""
    try:
        with storage_errors("list", directory), os.scandir(directory) as entries:
            yield from (e for e in entries if e.name.endswith(SUFFIX) and not e.name.startswith("."))
    except FileNotFoundError:
        return


def _records(
    directory: Path, names: list[str], dataset: str, parse: Parse[T], damaged: Damaged
) -> Iterator[tuple[str, int, tuple[str, T] | None]]:
    """The name and the stamp of each record that is there, and its path with what it holds.

    None in place of the last for a damaged record and for one of another dataset.
    """
    if not names:
        return
    where = os.fspath(directory)
    with storage_errors("read", directory), opened(directory, _FOLDER) as folder:
        for name in names:
            try:
                data, stamp = _read(folder, name)
            except FileNotFoundError:  # its owner replaced it or moved it aside meanwhile
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


@contextlib.contextmanager
def uncollected(records: int = MANY) -> Iterator[None]:
    """While so many records are read: looking for garbage takes a quarter of the time, and there is none.

    What was made lives on, so it is not looked through later either.
    """
    if records < MANY or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _name(dataset: str, path: str) -> str:
    return f"{record_name(dataset, path)}{SUFFIX}"


def _number(name: str) -> int:
    """Stands for a file's name in less memory than a full hash takes."""
    return hash(name) & ((1 << 48) - 1)


def _stamp(about: os.stat_result) -> int:
    return about.st_ino << 64 | about.st_mtime_ns


def _is_as_stamped(entry: os.DirEntry[str], stamp: int | None) -> bool:
    try:
        return _stamp(entry.stat(follow_symlinks=False)) == stamp
    except FileNotFoundError:  # replaced this instant
        return False


def _at_rest(mtime_ns: int) -> bool:
    """Whether a change from now on would show in the folder's time."""
    grain = TICK_NS if mtime_ns % 1_000_000_000 else SECONDS_NS
    return not 0 <= time.time_ns() - mtime_ns < grain


def _read(folder: int, name: str) -> tuple[bytes, int]:
    """A file's bytes, and the stamp of what was read."""
    # Without O_NONBLOCK a fifo left in the folder would hang whoever reads it.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(descriptor)
        return os.read(descriptor, about.st_size), _stamp(about)
    finally:
        os.close(descriptor)
