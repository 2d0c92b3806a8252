"""The names on the hot and the warm disk, which the stage-shard loop reconciles its records with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.observe.ledger import Disk
from stoker.store.direct import PART
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout, WarmLayout
from stoker.store.record import values_of


@dataclass(frozen=True)
class Seen:
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


@dataclass(frozen=True)
class OwnerMark:
    """The owner lock of a disk, by path, device and inode; another disk in its place has another mark."""

    path: str
    device: int
    inode: int

    def insist(self) -> None:
        """Raises UnavailableError when another disk, or none, is mounted now."""
        try:
            found = Path(self.path).stat()
        except OSError as error:
            raise UnavailableError(f"{self.path}: {error.strerror}; mount the disk again") from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise UnavailableError(f"{self.path} is not the one it was: another disk is mounted there")


def insist_on(task: Mapping[str, Any]) -> None:
    """Raises UnavailableError unless every disk that a task marks in `disks` is still mounted in its place.

    Each worker calls this first: below an unmounted mount point it would fill, or find empty, another disk.
    """
    for mark in task.get("disks", ()):
        OwnerMark(**mark).insist()


def look_at(layout: HotLayout | WarmLayout, dataset: str) -> Seen:
    """Lists the disk's directories; a missing directory is empty. Raises OSError for a failed read."""
    published, left = _names(layout.shards(dataset))
    trash, _ = _names(layout.trash)
    if isinstance(layout, WarmLayout):
        return Seen(published, left, trash)
    parquet, left_parquet = _names(layout.parquet)
    building, _ = _names(layout.building)
    sizes = {name: _bytes_in(layout.building / name) for name in building}
    return Seen(published, left_parquet + left, trash, parquet, building, sizes, _partial(layout.parquet))


def measure(directory: Path) -> tuple[Disk, bool]:
    """Returns the file system of a directory, and whether it is writable. Raises OSError."""
    found = os.statvfs(directory)
    block = found.f_frsize
    disk = Disk(directory.stat().st_dev, found.f_blocks * block, found.f_bavail * block)
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
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return (), ()
    return (
        tuple(name for name in names if not name.startswith(".")),
        tuple(str(folder / name) for name in names if name.startswith(".tmp-")),
    )
