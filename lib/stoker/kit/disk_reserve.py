"""A file of real blocks on the state disk, given back when the disk is full.

Without it, a daemon on a full disk could record neither its workers' results nor that the disk is full.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from stoker.kit.events import Events
from stoker.store.errors import StorageError, storage_errors
from stoker.store.files import fsync_dir, opened, unlink_durably

RESERVE_BYTES = 4 << 20  # a thousand records, or the events of a bad week
SPARE = 4  # created only where this many times its size are free: the reserve itself must not fill the disk
LOOK_EVERY_S = 2.0
NEARLY_FULL_BYTES = 64 << 10  # a record still fits, the next might not


class Reserve:
    """Gives its file back when the disk is full, and creates it again when space returns.

    `held` while the file exists; `spent` while the disk is full: then only work already under way is
    recorded.
    """

    def __init__(self, path: Path, events: Events, size: int = RESERVE_BYTES) -> None:
        self._path, self._events, self._size = path, events, size
        self._look_at = 0.0
        self.held = self.spent = False
        self._hold()

    def give_back(self, reason: str) -> bool:
        """Frees the reserve because the state disk is full; returns False when no reserve was left."""
        given, self.held = self.held, False
        with contextlib.suppress(StorageError, FileNotFoundError):
            unlink_durably(self._path)
        if given and not self.spent:
            self.spent = True
            self._events.record("state_disk_full", level="error", reason=reason)
        return given

    def look(self) -> None:
        """Frees the reserve before the first write fails, and creates it again once there is room.

        Acts every LOOK_EVERY_S.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        free, total = self._space()
        if self.spent:
            if free >= min(SPARE * self._size, total // 4):  # a quarter is enough for a very small disk
                self._hold()
                self.spent = False
                self._events.record("state_disk_has_room")
        elif not self.held:
            self._hold()
        elif free < NEARLY_FULL_BYTES:
            self.give_back(f"the disk of {self._path.parent} is full; free space on it")

    def _hold(self) -> None:
        """Creates the file, or completes a file that a crash cut short, if the disk has room to spare."""
        with (
            contextlib.suppress(StorageError, FileNotFoundError),
            storage_errors("reserve room at", self._path),
        ):
            is_whole = self._path.exists() and self._path.stat().st_blocks * 512 >= self._size
            if not is_whole and self._space()[0] >= SPARE * self._size:
                with opened(self._path, os.O_WRONLY | os.O_CREAT) as descriptor:
                    os.posix_fallocate(descriptor, 0, self._size)
                    os.fsync(descriptor)
                fsync_dir(self._path.parent)
                is_whole = True
            self.held = is_whole

    def _space(self) -> tuple[int, int]:
        """Returns the bytes that this user may write and those of the whole disk; zeros if statvfs fails."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return 0, 0
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return blocks * found.f_frsize, found.f_blocks * found.f_frsize
