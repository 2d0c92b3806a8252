"""What lies on the hot and the warm disk, names only: the stage-shard loop reconciles its records with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stoker.observe.ledger import Disk
from stoker.store.durable_copy import PART
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout, WarmLayout
from stoker.store.record import values_of


@dataclass(frozen=True)
class Seen:
    """One look at a disk: the names in shards/<dataset>/ and .trash/, on hot also in parquet/ and .building/.

    `temporaries` are paths that only an interrupted write can have left, `building_bytes` what each folder in
    .building/ takes, `partial` what there is of each file whose copy can be gone on with, by its name.
    """

    published: Sequence[str] = ()
    temporaries: Sequence[str] = ()
    trash: Sequence[str] = ()
    parquet: Sequence[str] = ()
    building: Sequence[str] = ()
    building_bytes: Mapping[str, int] = field(default_factory=dict)
    partial: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """What a lister tells."""
        return cls(**values_of(cls, message))


@dataclass(frozen=True)
class OwnerMark:
    """The owner lock of a disk, by path, device and inode: another disk in its place has another one."""

    path: str
    device: int
    inode: int

    def insist(self) -> None:
        """Raise UnavailableError when another disk, or none, is there now."""
        try:
            found = Path(self.path).stat()
        except OSError as error:
            raise UnavailableError(f"{self.path}: {error.strerror}; mount the disk again") from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise UnavailableError(f"{self.path} is not the one it was: another disk is mounted there")


def insist_on(task: Mapping[str, Any]) -> None:
    """Raise UnavailableError unless each disk a worker's task marks in `disks` is still the one in its place.

    A worker's first act: below an unmounted mount point it would fill, or find empty, some other disk.
    """
    for mark in task.get("disks", ()):
        OwnerMark(**mark).insist()


def look_at(layout: HotLayout | WarmLayout, dataset: str) -> Seen:
    """List the places; one that is not there yet is empty. Raises OSError where one cannot be read."""
    published, left = _names(layout.shards(dataset))
    trash, _ = _names(layout.trash)
    if isinstance(layout, WarmLayout):
        return Seen(published, left, trash)
    parquet, left_parquet = _names(layout.parquet)
    building, _ = _names(layout.building)
    sizes = {name: _bytes_in(layout.building / name) for name in building}
    return Seen(published, left_parquet + left, trash, parquet, building, sizes, _partial(layout.parquet))


def measure(directory: Path) -> tuple[Disk, bool]:
    """The file system a directory is on, and whether it may be written to. Raises OSError."""
    found = os.statvfs(directory)
    block = found.f_frsize
    disk = Disk(directory.stat().st_dev, found.f_blocks * block, found.f_bavail * block)
    return disk, not found.f_flag & os.ST_RDONLY


def _bytes_in(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # gone meanwhile, or a build's lock file
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
