"""Where an export is written: a directory that gets its name, by one rename, when all in it is durable."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from stoker.config.units import format_bytes
from stoker.shards.exchange.array_writer import Sink
from stoker.store.errors import LockHeld, StorageError, UsageError, storage_errors
from stoker.store.files import TEMPORARY, canonical_json, make_dir, publish_dir, remove_tree


class Output:
    """An export in the making. Left without `publish`, nothing of it stays.

    What a killed export left is removed by the next one to the same place. Raises UsageError where something
    stands at the target, LockHeld where another export is on its way there.
    """

    def __init__(self, target: Path) -> None:
        self.target = target.absolute()
        self.directory = self.target.with_name(f"{TEMPORARY}{self.target.name}")
        if os.path.lexists(self.target):
            raise UsageError(f"{target} exists; name a directory that is to be made, or remove this one")
        if not self.target.parent.is_dir():
            raise UsageError(f"{self.target.parent} is not there; make it, or name another place")
        self._held = self._take()

    def insist_on_room(self, needed: int) -> None:
        """Raise StorageError unless the file system has room for so many bytes."""
        found = os.statvfs(self.directory)
        free = found.f_bavail * found.f_frsize
        if free < needed:
            raise StorageError(
                f"{self.target.parent}: {format_bytes(free)} free, the export takes {format_bytes(needed)}; "
                "free some space, or name another disk",
                errno.ENOSPC,
            )

    def make_dir(self, name: str) -> Path:
        """A directory in the export."""
        make_dir(self.directory / name)
        return self.directory / name

    def write_json(self, name: str, body: Any) -> None:
        """A small file of JSON."""
        with Sink(self.directory / name) as sink:
            sink.write(canonical_json(body) + b"\n")

    def publish(self) -> None:
        """Make everything durable and give the directory its name."""
        try:
            publish_dir(self.directory, self.target)
        except FileExistsError:
            raise UsageError(f"{self.target} was made meanwhile; name another directory") from None

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        try:
            if os.path.lexists(self.directory):
                with contextlib.suppress(StorageError):  # the first error matters, and the next export sweeps
                    remove_tree(self.directory)
        finally:
            os.close(self._held)

    def _take(self) -> int:
        """Make the directory, locked for as long as this process lives, and empty."""
        while True:
            make_dir(self.directory)
            with storage_errors("open", self.directory):
                descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise LockHeld(
                    f"another export to {self.target} is at work; wait for it, or stop it"
                ) from error
            if self._is_still(descriptor) and not any(self.directory.iterdir()):
                return descriptor
            remove_tree(self.directory)
            os.close(descriptor)

    def _is_still(self, descriptor: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), self.directory.stat())
        return False
