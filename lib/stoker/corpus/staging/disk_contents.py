"""What lies on the hot and the warm disk, names only: the stage-shard loop reconciles its records with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.observe.ledger import Disk
from stoker.store.durable_copy import NOTE, PART
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout, WarmLayout


@dataclass(frozen=True)
class HotSeen:
    """One look at hot: file names in parquet/, folder names in .building/, shards/<dataset>/ and .trash/.

    `temporaries` are paths that only an interrupted write can have left, `building_bytes` what each folder in
    .building/ takes, `partial` what there is of each file whose copy can be gone on with, by its name.
    """

    parquet: tuple[str, ...]
    building: tuple[str, ...]
    published: tuple[str, ...]
    temporaries: tuple[str, ...]
    trash: tuple[str, ...] = ()
    building_bytes: Mapping[str, int] = field(default_factory=dict)
    partial: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmSeen:
    """One look at warm: folder names in shards/<dataset>/ and .trash/, and what an interrupted copy left."""

    published: tuple[str, ...]
    temporaries: tuple[str, ...]
    trash: tuple[str, ...]


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


def look_at_hot(hot: HotLayout, dataset: str) -> HotSeen:
    """List the places; one that is not there yet is empty. Raises OSError where one cannot be read."""
    parquet, left_parquet = _names(hot.parquet)
    published, left_published = _names(hot.shards(dataset))
    building, _ = _names(hot.building)
    trash, _ = _names(hot.trash)
    sizes = {name: _bytes_in(hot.building / name) for name in building}
    left = left_parquet + left_published
    return HotSeen(parquet, building, published, left, trash, sizes, _partial(hot.parquet))


def look_at_warm(warm: WarmLayout, dataset: str) -> WarmSeen:
    """List the places; one that is not there yet is empty. Raises OSError where one cannot be read."""
    published, left = _names(warm.shards(dataset))
    trash, _ = _names(warm.trash)
    return WarmSeen(published, left, trash)


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
    with contextlib.suppress(FileNotFoundError):
        for file in folder.glob(f"{PART}*"):
            name = file.name.removeprefix(PART)
            found.setdefault(name.removesuffix(NOTE), 0)
            if not name.endswith(NOTE):
                with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                    found[name] = file.stat().st_size
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
