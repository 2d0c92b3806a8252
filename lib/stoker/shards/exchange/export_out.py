"""Where an export is written: a directory that gets its name, by one rename, when all in it is durable."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.config.units import format_bytes
from stoker.shards.exchange.array_writer import Sink
from stoker.store.errors import LockHeld, StorageError, UsageError, storage_errors
from stoker.store.files import TEMPORARY, canonical_json, make_dir, opened, publish_dir, remove_tree


@contextlib.contextmanager
def new_directory(target: Path, needed: int) -> Iterator[Path]:
    """A directory that is published at `target` when the block ends well; else nothing of it stays.

    What a killed export left there is removed. Raises UsageError where something is at the target, LockHeld
    where another export is on its way there, StorageError unless there is room for so many bytes.
    """
    target = target.absolute()
    if os.path.lexists(target):
        raise UsageError(f"{target} exists; name a directory that is to be made, or remove this one")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not there; make it, or name another place")
    building = target.with_name(f"{TEMPORARY}{target.name}")
    make_dir(building)
    with storage_errors("open", building), opened(building, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeld(f"another export to {target} is at work; wait for it, or stop it") from error
        try:
            for left in building.iterdir():
                remove_tree(left) if left.is_dir() else left.unlink()
            _insist_on_room(building, needed)
            yield building
            publish_dir(building, target)
        except FileExistsError:
            raise UsageError(f"{target} was made meanwhile; name another directory") from None
        finally:
            with contextlib.suppress(StorageError):  # the first error matters, and the next export sweeps
                remove_tree(building)


def _insist_on_room(place: Path, needed: int) -> None:
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise StorageError(
            f"{place.parent}: {format_bytes(free)} free, the export takes {format_bytes(needed)}; "
            "free some space, or name another disk",
            errno.ENOSPC,
        )


def write_json(path: Path, body: Any) -> None:
    """Write a small file of JSON; raises StorageError."""
    with Sink(path) as sink:
        sink.write(canonical_json(body) + b"\n")
