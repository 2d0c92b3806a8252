"""Room kept on a disk for the hour when it is full: a file of real blocks that is given back then.

A daemon on a full disk could write neither what its workers finished nor that the disk is full.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stoker.store.errors import StorageError, storage_errors
from stoker.store.files import fsync_dir, opened, unlink_durably

BALLAST_BYTES = 4 << 20  # a thousand records, or the events of a bad week
SPARE = 4  # made only where this many times its size are free: it must not be what fills the disk


class Ballast:
    """One file of `size` bytes; `held` while it is there."""

    def __init__(self, path: Path, size: int = BALLAST_BYTES) -> None:
        self.path, self._size = path, size
        self.held = False

    def hold(self) -> bool:
        """Have the file, if there is room to spare for it; a disk that refuses it has none."""
        with contextlib.suppress(StorageError, FileNotFoundError):
            self.held = self._is_whole() or (self._space()[0] >= SPARE * self._size and self._make())
        return self.held

    def give_back(self) -> bool:
        """Free its blocks; False when there was nothing to free."""
        given, self.held = self.held, False
        with contextlib.suppress(StorageError, FileNotFoundError):
            unlink_durably(self.path)
        return given

    def free_bytes(self) -> int:
        """What this user may write on its disk now; 0 where that cannot be told."""
        return self._space()[0]

    def has_room(self) -> bool:
        """Whether the disk has room to spare again; of a very small one a quarter."""
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
        # Under its own name from the first byte: one cut short is filled up at the next try.
        with (
            storage_errors("reserve room at", self.path),
            opened(self.path, os.O_WRONLY | os.O_CREAT) as descriptor,
        ):
            os.posix_fallocate(descriptor, 0, self._size)
            os.fsync(descriptor)
        fsync_dir(self.path.parent)
        return True
