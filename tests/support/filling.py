"""Somebody else on a small disk: takes room and gives it back, at seeded moments."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

from support.mounts import free_bytes

_NAME = "somebody-else"


class Filler(threading.Thread):
    """Takes and gives back space on each of `disks` until stopped; at the end it leaves nothing behind.

    Each time it leaves nothing free, a little, or all: a disk that is always full would let nobody go on.
    """

    def __init__(self, disks: list[Path], seed: int, *, longest_s: float = 1.5) -> None:
        super().__init__(daemon=True)
        self._disks = disks
        self._random = random.Random(seed)
        self._longest_s = longest_s
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(self._random.uniform(0.1, self._longest_s)):
            disk = self._random.choice(self._disks)
            self.leave(disk, self._random.choice((0.0, 0.0, 0.05, 0.3, 1.0, 1.0)))

    def leave(self, disk: Path, share: float) -> None:
        """Leave this share of what the disk has for us and others free."""
        file = disk / _NAME
        with contextlib.suppress(OSError):  # somebody was faster: then the disk is full all the same
            file.unlink(missing_ok=True)
            take = int(free_bytes(disk) * (1 - share))
            if take:
                with file.open("wb") as stream:
                    os.posix_fallocate(stream.fileno(), 0, take)

    def stop(self) -> None:
        """Give everything back and be gone."""
        self._done.set()
        self.join()
        for disk in self._disks:
            (disk / _NAME).unlink(missing_ok=True)
