"""A folder of records, one for each path of a dataset; a file is parsed again only after it changed.

Made for 50,000 of them: a look at a folder where nothing changed costs one stat of the folder, for a record
is always replaced by a rename, which shows there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stoker.store.names import record_name
from stoker.store.record import RecordDamaged, parse_record

T = TypeVar("T")
Damaged = Callable[[Path, RecordDamaged], None]
FolderStamp = tuple[int, int, int]  # device, inode, mtime in ns

# A folder's time stamp stands still for a tick of the kernel while entries come and go; where a file system
# keeps whole seconds only, for up to two of them.
TICK_NS, SECONDS_NS = 100_000_000, 2_100_000_000
LOOK_SHARE = 0.1  # of the time, at most, that a patient reader spends looking
PARTS, PART_S = 16, 0.5  # in how many looks, so far apart, it has asked of every file when it was written
PIECE = 1 << 16
MANY, SLICE = 1000, 1000  # records: how many make it worth it to be clever, how many are read at a time
SUFFIX = ".json"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class _Asked(dict[str, T]):
    """The records found so far; one that is asked for by its path and still to be read is read then."""

    def __init__(self, fetch: Callable[[str], T | None]) -> None:
        super().__init__()
        self._fetch = fetch

    def get(self, path: str, default: Any = None) -> Any:
        """As a dictionary's."""
        found = super().get(path)
        if found is None:
            found = self._fetch(path)
        return default if found is None else found

    def __missing__(self, path: str) -> T:
        found = self._fetch(path)
        if found is None:
            raise KeyError(path)
        return found


class RecordDir(Generic[T]):
    """The records of one dataset in one folder, as `parse` reads them.

    A folder may hold records of several datasets: those of others are passed over. A `patient` reader may see
    a change late, by well under a second for 50,000 records, and does not spend its days looking while many
    change one by one; `due` is when it should look again. One replaced twice between two looks, so that it
    has its old inode again, such a reader sees after some seconds at most. And it reads thousands not at once
    but a slice a look; until then, while it is `behind`, what it is asked for by its path is read first.
    """

    def __init__(
        self,
        directory: Path,
        dataset: str,
        parse: Callable[[Mapping[str, Any]], T],
        *,
        patient: bool = False,
    ) -> None:
        self._directory = directory
        self._dataset = dataset
        self._parse = parse
        self._patient = patient
        self._found: dict[str, T] = self._empty()
        self._behind: dict[str, None] = {}  # the names of records that are still to be read
        # By the name as a number: the file's inode above its mtime. Names and tuples would take three times
        # the memory.
        self._stamps: dict[int, int] = {}
        self._folder: FolderStamp | None = None  # as it was when all that was found was true
        self._doubts = 0  # parts of the records that were told unchanged by their inodes alone
        self._looked, self._look_s, self._looks = -1e9, 0.0, 0
        self._changed: set[str] = set()
        self._disorder = False

    def read(self, damaged: Damaged | None = None) -> dict[str, T]:
        """Every whole record by its path, in path order; the same dictionary until a record comes or goes.

        A damaged one is left out and handed to `damaged`; only the folder's owner may move it aside.
        Raises DataError where a whole record is of a shape this version cannot read.
        """
        folder = self._stamp_folder()
        if self._behind and folder is not None:
            self._catch_up(damaged)
            return self._found
        if folder is None:
            self._forget()
            return self._found
        now, changed = time.monotonic(), folder != self._folder
        if not changed and not (self._doubts and now >= self._looked + PART_S):
            return self._found
        if self._patient and now < self._looked + self._look_s / LOOK_SHARE:
            return self._found
        at_rest = _at_rest(folder[2])
        self._folder = None  # should the look break off
        self._look(damaged, changed=changed)
        self._folder = folder if at_rest else None
        return self._found

    @property
    def behind(self) -> bool:
        """Whether records are still to be read."""
        return bool(self._behind)

    @property
    def due(self) -> float | None:
        """When a look is due that nobody will wake us up for, monotonic seconds; None when none is."""
        if self._behind:
            return time.monotonic()
        if self._folder is None:
            return self._looked + max(TICK_NS / 1e9, self._look_s / LOOK_SHARE)
        return self._looked + PART_S if self._doubts else None

    def take_changed(self) -> set[str]:
        """The paths whose record came, changed or went since this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def _look(self, damaged: Damaged | None, *, changed: bool) -> None:
        parts = PARTS if self._patient and len(self._stamps) >= MANY else 1
        began, self._looks = time.monotonic(), self._looks + 1
        names, met = self._scan(parts, self._looks % parts)
        self._looked = time.monotonic()
        self._look_s = self._looked - began
        self._doubts = (parts if changed else min(self._doubts, parts)) - 1
        if self._patient and len(names) > SLICE:
            self._behind = dict.fromkeys(sorted(names, reverse=True))
            names = []
        if met < len(self._stamps) or not self._load(names, damaged):
            # A record went. Which path's it was is not known any more, and it hardly ever happens.
            self._forget()
            self._load(self._scan(1, 0)[0], damaged)
        if self._behind:
            self._catch_up(damaged)

    def _catch_up(self, damaged: Damaged | None) -> None:
        names = [self._behind.popitem()[0] for _ in range(min(SLICE, len(self._behind)))]
        if not self._load(names, damaged):
            self._forget()

    def _fetch(self, path: str) -> T | None:
        """Read the record of a path at once, if it is one of those still to be read."""
        name = f"{record_name(self._dataset, path)}{SUFFIX}"
        if name not in self._behind:
            return None
        del self._behind[name]
        if not self._load([name], None):
            self._forget()
        return dict.get(self._found, path)

    def _empty(self) -> dict[str, T]:
        return _Asked(self._fetch) if self._patient else {}

    def _scan(self, parts: int, part: int) -> tuple[list[str], int]:
        """The names of the records that may have changed, and how many there are that were known.

        Of one part of them, of so many, that is asked of their files; of the others, whether it is still the
        same file.
        """
        changed, met = [], 0
        stamps = self._stamps
        with storage_errors("list", self._directory), os.scandir(self._directory) as entries:
            for entry in entries:
                name = entry.name
                if not _is_record(name):
                    continue
                number = _number(name)
                stamp = stamps.get(number)
                met += stamp is not None
                replaced = stamp is None or stamp >> 64 != entry.inode()
                if replaced or (number % parts == part and not _is_as_stamped(entry, stamp)):
                    changed.append(name)
        return changed, met

    def _load(self, names: list[str], damaged: Damaged | None) -> bool:
        """Read these again; False when one that was whole is not any more."""
        if not names:
            return True
        whole, disorder, last = True, self._disorder, next(reversed(self._found), "")
        with uncollected(len(names)):
            records = _read_records(
                self._directory, sorted(names), self._dataset, self._parse, damaged or (lambda *_: None)
            )
            for name, stamp, found in records:
                number = _number(name)
                was_known, self._stamps[number] = number in self._stamps, stamp
                if found is None:
                    whole = whole and not was_known
                    continue
                path, thing = found
                if path not in self._found:
                    disorder, last = disorder or path < last, path
                self._found[path] = thing
                self._changed.add(path)
        if disorder and not self._behind:
            ordered = self._empty()
            ordered.update(sorted(self._found.items()))
            self._found = ordered
        self._disorder = disorder and bool(self._behind)
        return whole

    def _forget(self) -> None:
        """Start over; whoever kept the old dictionary keeps it."""
        self._changed.update(self._found)
        self._found, self._behind, self._disorder = self._empty(), {}, False
        self._stamps, self._folder, self._doubts = {}, None, 0

    def _stamp_folder(self) -> FolderStamp | None:
        try:
            with storage_errors("look at", self._directory):
                about = self._directory.stat()
        except FileNotFoundError:
            return None
        return about.st_dev, about.st_ino, about.st_mtime_ns


def each_record(
    directory: Path, dataset: str, parse: Callable[[Mapping[str, Any]], T], damaged: Damaged
) -> Iterator[tuple[str, T]]:
    """Every whole record of a dataset with its path, read once, and nothing kept of it.

    Damaged ones are left out and handed to `damaged`. Raises DataError as a RecordDir does.
    """
    try:
        with storage_errors("read", directory), os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _is_record(entry.name))
    except FileNotFoundError:
        return
    for _, _, found in _read_records(directory, names, dataset, parse, damaged):
        if found is not None:
            yield found


def _read_records(
    directory: Path,
    names: list[str],
    dataset: str,
    parse: Callable[[Mapping[str, Any]], T],
    damaged: Damaged,
) -> Iterator[tuple[str, int, tuple[str, T] | None]]:
    """The name and the stamp of each record that is there, and its path with what it holds.

    None in place of the last for a damaged record and for one of another dataset.
    """
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


def _is_record(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


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


def _number(name: str) -> int:
    """A record's name as a number: by the digits at its end, which tell names apart."""
    try:
        return int(name[-17:-5], 16)
    except ValueError:  # a name that no record has
        return hash(name)


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
        data = os.read(descriptor, PIECE)
        while len(data) >= PIECE and (piece := os.read(descriptor, PIECE)):
            data += piece
    finally:
        os.close(descriptor)
    return data, _stamp(about)
