"""What lies on hot and warm by a look at the disk and by the source records, and the room that sets take.

The lister's worker looks; the stage-shard loop compares, and claims room. A claim is an estimate from the
file's size. Repetitive text can take a thousand times more, so a build stops at its claim and asks for more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.corpus.readers.table import suffix_of
from stoker.corpus.records.index import Amount
from stoker.corpus.records.sources import PUBLISHED, Books, Source
from stoker.observe.ledger import Disk
from stoker.store.direct import PART
from stoker.store.layout import HotLayout, WarmLayout, record_name
from stoker.store.record import values_of

UNMEASURED_RATIO = 1.5  # set bytes a parquet byte before any set was built; mostly less than 1 for text
SPARE = 1.1  # files differ
_INDEX_BYTES = 16  # a document's end and its row number
FILES_BYTES = 40 << 10  # manifest and small files, and the unused ends of blocks
_STEPS = 8  # a build's claim shrinks in so many steps, not with every commit
USUAL = 2  # times the expected size: the usual error of an estimate; such a build may use the floor
STEP_BYTES = 16 << 20  # a claim is raised by at least so much where there is room: builds ask seldom
AGAIN = 1.25  # times the size so far: the room that a build which was set back needs to begin again
HOPELESS = 1.5  # times the size so far: a build that hot could never hold at this size does not wait for room


# A look at a disk


@dataclass(frozen=True)
class ScanResult:
    """One look at a disk: names in shards/<dataset>/ and .trash/, and on hot in parquet/ and .building/."""

    published: Sequence[str] = ()
    temporaries: Sequence[str] = ()  # paths that only an interrupted write can have left
    trash: Sequence[str] = ()
    parquet: Sequence[str] = ()
    building: Sequence[str] = ()
    building_bytes: Mapping[str, int] = field(default_factory=dict)  # by folder of .building/
    partial: Mapping[str, int] = field(default_factory=dict)  # bytes of each resumable copy, by file name

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Parses a lister's message."""
        return cls(**values_of(cls, message))


def look_at(layout: HotLayout | WarmLayout, dataset: str) -> ScanResult:
    """Lists the disk's directories; a missing directory is empty. Raises OSError for a failed read."""
    published, left = _names(layout.shards(dataset))
    trash, _ = _names(layout.trash)
    if isinstance(layout, WarmLayout):
        return ScanResult(published, left, trash)
    parquet, left_parquet = _names(layout.parquet)
    building, _ = _names(layout.building)
    sizes = {name: _bytes_in(layout.building / name) for name in building}
    return ScanResult(
        published, left_parquet + left, trash, parquet, building, sizes, _partial(layout.parquet)
    )


def measure(directory: Path) -> tuple[Disk, bool]:
    """Returns the file system of a directory, and whether it is writable. Raises OSError."""
    found = os.statvfs(directory)
    block = found.f_frsize
    bytes_ = (found.f_blocks * block, found.f_bavail * block)
    disk = Disk(directory.stat().st_dev, *bytes_, found.f_files, found.f_favail)
    return disk, not found.f_flag & os.ST_RDONLY


def _bytes_in(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or a build's lock file
        return 0


def _partial(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for file in folder.glob(f"{PART}*"):
        with contextlib.suppress(FileNotFoundError):  # finished meanwhile
            found[file.name.removeprefix(PART)] = file.stat().st_size
    return found


def _names(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names in a folder, and the paths of what interrupted writes left there."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return (), ()
    return (
        tuple(name for name in names if not name.startswith(".")),
        tuple(str(folder / name) for name in names if name.startswith(".tmp-")),
    )


# The records beside it


def parquet_name(source: Source) -> str:
    """Returns the name of the source's file in hot's parquet directory, with the suffix of its reader."""
    return f"{record_name(source.dataset, source.path)}{suffix_of(source.path)}"


def partial_copy(hot: HotLayout, name: str) -> str:
    """Returns the path of the partial copy of a file in hot's parquet directory."""
    return str(hot.parquet / f"{PART}{name}")


@dataclass(frozen=True)
class Findings:
    """The differences between a disk and the records."""

    renew: tuple[tuple[str, str], ...] = ()  # (path, reason) of sources to start over
    remove: tuple[str, ...] = ()  # files that no record needs there
    lost: tuple[str, ...] = ()  # paths whose set is on the other disk only
    parquet: tuple[tuple[str, str], ...] = ()  # (path of the source, file on hot to remove)
    # Paths whose only set this look did not see on warm. They start over when the next look does not see it
    # either: to build a set again is expensive, and one look may err.
    gone: frozenset[str] = frozenset()


def reconcile_hot(hot: HotLayout, seen: ScanResult, sources: Mapping[str, Source]) -> Findings:
    """Returns the records whose file or set is gone from hot, and the leftovers that no record needs.

    Files in the parquet directory that belong to no record stay: Stoker did not put them there. The evict
    worker reports on a set that is being evicted.
    """
    renew, lost, unneeded = [], [], []
    evicting, building, resumed = set(), set(), set()
    parquet, published = set(seen.parquet), set(seen.published)
    for path, source in sources.items():
        key, state = str(source.key)[:16], source.state
        if source.evicting:
            evicting.add(key)
        if state == "building":
            building.add(key)
        if source.hot and key not in published:
            if source.on_warm:
                lost.append(path)
            else:
                renew.append((path, f"its shard set {key} is not on hot"))
        elif state in ("staged", "building"):
            if key not in published and parquet_name(source) not in parquet:
                renew.append((path, "its parquet file is not on hot"))
        elif parquet and state in ("quarantined", "duplicate", "released"):
            if (name := parquet_name(source)) in parquet:
                unneeded.append((path, str(hot.parquet / name)))
        elif seen.partial and state == "seen":
            resumed.add(parquet_name(source))
    remove = (
        *seen.temporaries,
        *(str(hot.trash / name) for name in seen.trash if name.split("-")[0] not in evicting),
        *(str(hot.building / name) for name in seen.building if name.removesuffix(".lock") not in building),
        *(partial_copy(hot, name) for name in seen.partial if name not in resumed),
    )
    return Findings(tuple(renew), remove, tuple(lost), tuple(unneeded))


def reconcile_warm(
    warm: WarmLayout, seen: ScanResult, sources: Mapping[str, Source], *, gone_before: Collection[str]
) -> Findings:
    """Returns the records whose copy is gone from warm, and the leftovers of interrupted copies."""
    published, lost, gone = set(seen.published), [], set()
    for path, source in sources.items():
        if source.on_warm and source.state in PUBLISHED and not source.evicting:
            if str(source.key)[:16] in published:
                continue
            if source.evicted:
                gone.add(path)
            else:
                lost.append(path)
    reason = "its shard set was on warm only, and is gone from there"
    return Findings(
        renew=tuple((path, reason) for path in sorted(gone.intersection(gone_before))),
        remove=(*seen.temporaries, *(str(warm.trash / name) for name in seen.trash)),
        lost=tuple(lost),
        gone=frozenset(gone.difference(gone_before)),
    )


# The room that sets take


def set_bytes(books: Books | None, token_bytes: int) -> int:
    """Returns the bytes of a published set, by its books."""
    amount = Amount(1) if books is None else Amount(1, books.tokens, books.documents or 0)
    return amount_bytes(amount, token_bytes)


def amount_bytes(amount: Amount, token_bytes: int) -> int:
    """Returns the bytes of all sets in an amount."""
    indices = amount.documents * _INDEX_BYTES
    return amount.tokens * token_bytes + indices + amount.sets * FILES_BYTES


def ratio_of(measured: Amount, token_bytes: int) -> float | None:
    """Returns set bytes a parquet byte of the sets built so far; None before the first."""
    return amount_bytes(measured, token_bytes) / measured.parquet_bytes if measured.parquet_bytes else None


@dataclass(frozen=True)
class Estimate:
    """Computes sizes of sets, published or to be built."""

    token_bytes: int
    ratio: float | None

    def published(self, source: Source) -> int:
        """Returns the bytes of a published source's set."""
        return set_bytes(source.books, self.token_bytes)

    def built(self, source: Source) -> int:
        """Returns the expected bytes of the set to be built from a source."""
        ratio = UNMEASURED_RATIO if self.ratio is None else self.ratio * SPARE
        return int(source.size * ratio) + FILES_BYTES

    def rest(self, source: Source, committed: int, granted: int = 0) -> int:
        """Returns the bytes a running build will still write; `granted` replaces the estimate."""
        whole = granted or self.built(source)
        step = max(1, whole // _STEPS)
        return max(0, whole - committed // step * step)


@dataclass(frozen=True)
class Growth:
    """A build at the end of its claim; all in bytes of its set."""

    expected: int
    claimed: int
    written: int  # on hot
    needed: int  # `written` and the next write
    room: int  # free above the floor and not claimed by other work
    floor_room: int  # the part of the floor that any begun build may use
    most: int  # that hot can hold of one set after every removable set has left

    @property
    def is_usual(self) -> bool:
        """Whether the estimate's error is of the usual size."""
        return self.needed <= USUAL * self.expected

    @property
    def limit(self) -> int:
        """The bytes that the set may take now."""
        usual = min(self.written + self.floor_room, USUAL * self.expected) if self.is_usual else 0
        return max(self.written + self.room, usual)

    @property
    def is_hopeless(self) -> bool:
        """Whether hot can never hold the set; only a set far beyond its estimate can be hopeless.

        A disk that is full of other sets, or of files that are not Stoker's, convicts no file.
        """
        return not self.is_usual and self.needed * HOPELESS > self.most


def decide_growth(growth: Growth) -> int | None:
    """Returns the new claim of a build that asks for room; None where its partial set is given up."""
    if growth.needed > growth.limit:
        return None
    return min(growth.limit, max(growth.needed, growth.claimed * USUAL, growth.claimed + STEP_BYTES))
