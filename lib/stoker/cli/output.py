"""The output of a command: a directory that gets its name by one rename, when all of it is durable."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.config.units import format_bytes
from stoker.kit.lock import hold_directory
from stoker.store.errors import StorageError, UsageError, storage_errors
from stoker.store.files import (
    FILE_MODE,
    TEMPORARY,
    canonical_json,
    fsync_tree,
    make_dir,
    move_durably,
    remove_durably,
    remove_tree,
    tree_bytes,
    write_all,
    write_atomic,
)


class Sink(io.FileIO):
    """A new file, written front to end; `sha256` and `size` (bytes) are of all bytes written."""

    def __init__(self, path: Path) -> None:
        with storage_errors("create", path):
            super().__init__(path, "xb", opener=lambda name, flags: os.open(name, flags, FILE_MODE))
        self.path, self.size = path, 0
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Writes all of the data; raises StorageError."""
        view = memoryview(data).cast("B")
        with storage_errors("write", self.path):
            write_all(self.fileno(), view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextlib.contextmanager
def new_directory(target: Path, needed: int, *, part: str = "", resumes: bool = False) -> Iterator[Path]:
    """Yields a directory that is published at `target` when the block ends well, and removed otherwise.

    With `part` only the file or the directory of this name in it is published. Removes the leftovers of a
    killed command first; with `resumes` it yields them, and removes nothing. Raises UsageError where the
    target exists, LockHeld where another command makes it, StorageError where fewer than `needed` bytes are
    free.
    """
    target = target.absolute()
    if os.path.lexists(target):
        raise UsageError(f"{target} exists; name a directory that is to be made, or remove this one")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} does not exist; make it, or name another place")
    building = target.with_name(f"{TEMPORARY}{target.name}")
    needed -= tree_bytes(building) if resumes and building.is_dir() else 0
    found = os.statvfs(target.parent)
    if (free := found.f_bavail * found.f_frsize) < needed:
        raise StorageError(
            f"{target.parent}: {format_bytes(free)} free, {target.name} takes {format_bytes(needed)}; "
            "free some space, or name another disk"
        )
    make_dir(building)
    with hold_directory(building, f"another command is making {target}; wait for it, or stop it"):
        try:
            for left in building.iterdir() if not resumes else ():
                remove_durably(left)
            yield building
            with storage_errors("publish", target):
                fsync_tree(building)
            move_durably(building / part, target)
        except FileExistsError:
            raise UsageError(f"{target} was made meanwhile; name another directory") from None
        finally:
            with contextlib.suppress(StorageError):  # the first error matters; the next command removes it
                if not resumes:
                    remove_tree(building)


def write_json(path: Path, body: Any) -> None:
    """Writes a small JSON file, durable once its directory is published; raises StorageError."""
    write_atomic(path, canonical_json(body) + b"\n", durable=False)
