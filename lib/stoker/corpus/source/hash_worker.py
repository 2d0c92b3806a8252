"""Worker: the sha256 of source files, each only if it is unchanged since its look, in the background.

Hashing existing files must not slow down training's reads. So the process gives way on the CPUs (nice) and on
the disk (I/O class idle, if the disk's scheduler supports it). Not every scheduler does, so all such readers
of the machine also pause together for a moment every four seconds: if the disk is waited for then, other
processes need it, and readers stay paused.

task: {"root", "path", "size", "mtime_ns", "inode"}; messages: {"kind": "hashed", "bytes"}
result: {"status": "hashed", "sha256", "size", "cached"}, {"status": "changed"} or {"status": "missing"}
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.kit.workers.child import give_way, paced, run_worker
from stoker.observe.machine import Pressure, PressureGauge
from stoker.store.direct import hash_opened
from stoker.store.errors import storage_errors
from stoker.store.files import NotPlain, file_beneath

EVERY_S = 4.0
GRACE_S, LOOK_S = 0.1, 0.1  # of a pause: until the last reads end, and while disk waits are measured
LITTLE = 64 << 20  # bytes too few to disturb other processes
MUCH = 0.3  # the share of time that other processes wait for the disk
MOST_TURNS = 3  # pauses in a row, after which the reader reads for a while in any case
ALIVE_S = 0.5


class Background:
    """The pauses of one process's reader, which calls step() between reads.

    `look` returns how much time was spent waiting for the disk since its last call; `moment` is a clock that
    all readers of the machine share, so that they pause at the same time.
    """

    def __init__(
        self,
        look: Callable[[], Pressure | None] | None = None,
        moment: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look or PressureGauge().sample
        self._moment, self._pause = moment, pause
        self._next = _after(moment())
        self._read = 0  # bytes since the last pause

    def step(self, size: int, alive: Callable[[], None] = lambda: None) -> None:
        """Records a read; pauses when due, and for as long as other processes wait for the disk.

        `alive` is called meanwhile.
        """
        self._read += size
        if self._read < LITTLE or self._moment() < self._next:
            return
        for _ in range(MOST_TURNS):
            if not self._others_wait(alive):
                break
            self._still_until(_after(self._moment()), alive)
        self._read, self._next = 0, _after(self._moment())

    def following(self, tell: Callable[[int], None]) -> Callable[[int], None]:
        """Returns a progress callback that passes a file's read bytes on to `tell` and pauses in between."""
        before = 0

        def progress(done: int) -> None:
            nonlocal before
            tell(done)
            size, before = max(0, done - before), done
            self.step(size, lambda: tell(done))

        return progress

    def _others_wait(self, alive: Callable[[], None]) -> bool:
        now = self._moment()
        begin = now // EVERY_S * EVERY_S
        if now > begin + GRACE_S:  # after a long read the other readers' pause is over
            begin = _after(now)
        self._still_until(begin + GRACE_S, alive)
        self._look()
        self._still_until(begin + GRACE_S + LOOK_S, alive)
        found = self._look()
        return found is not None and found.io_some is not None and found.io_some > MUCH

    def _still_until(self, then: float, alive: Callable[[], None]) -> None:
        while (left := then - self._moment()) > 0:
            self._pause(min(left, ALIVE_S))
            if left > ALIVE_S:
                alive()


def _after(now: float) -> float:
    return (now // EVERY_S + 1) * EVERY_S


def hash_unchanged(
    task: dict[str, Any], report: Callable[..., None], background: Background
) -> dict[str, Any]:
    """Hashes one file between two looks at it."""
    root, path = Path(task["root"]), task["path"]
    looked_at = (task["size"], task["mtime_ns"], task["inode"])
    tell = paced(lambda done: report("hashed", bytes=done))
    try:
        with storage_errors("read", root / path), file_beneath(root, path) as file:
            if _look(file) != looked_at:
                return {"status": "changed"}
            found = hash_opened(file, progress=background.following(tell))
            # The bytes read are still the file's content, and the file still has that name.
            with file_beneath(root, path) as again:
                if not _look(file) == _look(again) == looked_at or found.size != task["size"]:
                    return {"status": "changed"}
    except NotPlain:
        return {"status": "changed"}
    except FileNotFoundError:
        return {"status": "missing"}
    return {"status": "hashed", "sha256": found.sha256, "size": found.size, "cached": found.cached}


def _look(file: int) -> tuple[int, int, int]:
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns, found.st_ino


if __name__ == "__main__":
    give_way()
    run_worker(functools.partial(hash_unchanged, background=Background()), stop_anywhere=True, many=True)
