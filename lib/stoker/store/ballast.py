"""Reserves room on a disk: a file of real blocks, which a daemon deletes when the disk is full.

Without that room a daemon could record neither the results of its workers nor that the disk is full.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stoker.store.errors import StorageError, storage_errors
from stoker.store.files import fsync_dir, opened, unlink_durably

BALLAST_BYTES = 4 << 20  # a thousand records, or the events of a bad week
SPARE = 4  # made only where this many times its size are free: the ballast must not fill the disk


class Ballast:
    """A file of `size` bytes; `held` while the file exists."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self.path, self._size = path, size
        self.held = False

    def hold(self) -> bool:
        """Makes the file if the disk has room to spare; returns whether the file exists."""
        with contextlib.suppress(StorageError, FileNotFoundError):
            self.held = self._is_whole() or (self._space()[0] >= SPARE * self._size and self._make())
        return self.held

    def give_back(self) -> bool:
        """Deletes the file; returns False when the file was not held."""
        given, self.held = self.held, False
        with contextlib.suppress(StorageError, FileNotFoundError):
            unlink_durably(self.path)
        return given

    def free_bytes(self) -> int:
        """Returns the bytes that this user may write on the disk now; 0 where statvfs fails."""
        return self._space()[0]

    def has_room(self) -> bool:
        """Returns whether the disk has room to spare: SPARE times the ballast, or a quarter of the disk."""
        free, total = self._space()
        return free >= min(SPARE * self._size, total // 4)

    def _space(self) -> tuple[int, int]:
        try:
            found = os.statvfs(self.path.parent)
        except OSError:
            return 0, 0
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return blocks * found.f_frsize, found.f_blocks * found.f_frsize

    def _is_whole(self) -> bool:
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return found.st_size == self._size and found.st_blocks * 512 >= self._size

    def _make(self) -> bool:
        # Without a temporary name: the next call completes a file that a crash left short.
        with (
            storage_errors("reserve room at", self.path),
            opened(self.path, os.O_WRONLY | os.O_CREAT) as descriptor,
        ):
            os.posix_fallocate(descriptor, 0, self._size)
            os.fsync(descriptor)
        fsync_dir(self.path.parent)
        return True
