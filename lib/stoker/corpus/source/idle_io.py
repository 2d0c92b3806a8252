"""Reads in the background: hashing existing files must not slow down training's reads.

A process that only hashes gives way on the CPUs (nice) and on the disk (I/O class idle, if the disk's
scheduler supports it). Not every scheduler does, so all such readers of the machine also pause together for a
moment every four seconds: if the disk is waited for then, other processes need it, and readers stay paused.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator

from stoker.observe.machine import Pressure, PressureGauge

NICE = 10  # a tenth of training's share of a contended CPU
EVERY_S = 4.0
GRACE_S, LOOK_S = 0.1, 0.1  # of a pause: until the last reads end, and while disk waits are measured
LITTLE = 64 << 20  # bytes too few to disturb other processes
MUCH = 0.3  # the share of time that other processes wait for the disk
MOST_TURNS = 3  # pauses in a row, after which the reader reads for a while in any case
ALIVE_S = 0.5
# ioprio_set(2) and ioprio_get(2) have no functions in the C library.
_IOPRIO = {"x86_64": (251, 252), "aarch64": (30, 31)}
_CLASS_SHIFT = 13
_SET, _GET, _WHO_PROCESS, _IDLE = 0, 1, 1, 3 << _CLASS_SHIFT


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
        self._look = look or PressureGauge().look
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


def give_way() -> None:
    """Lowers this process's CPU and disk priority for good."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _io_call(_SET, _IDLE)


@contextlib.contextmanager
def giving_way_on_disk() -> Iterator[None]:
    """Lowers the disk priority of this thread within the block."""
    before = _io_call(_GET)
    _io_call(_SET, _IDLE)
    try:
        yield
    finally:
        if before >= 0:
            _io_call(
                _SET, before if before >> _CLASS_SHIFT else 0
            )  # the kernel refuses a level without a class


def _io_call(which: int, *priority: int) -> int:
    """Gets or sets the I/O priority of the calling thread and its later children; -1 if unsupported."""
    numbers = _IOPRIO.get(platform.machine())
    if numbers is None:
        return -1
    result: int = ctypes.CDLL(None).syscall(numbers[which], _WHO_PROCESS, 0, *priority)
    return result
