"""Measures the memory of a set of processes from /proc, at a cost that stays small."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from stoker.kit.process import pss_of

PSS_SHARE = 0.01  # of the time may go into PSS: the kernel walks every page of a process for it
PSS_WAIT_S = 0.05  # for a measurement; a longer one is in a later sample
_LINE = re.compile(rb"^(VmRSS|VmHWM|VmSwap):\s+(\d+) kB", re.MULTILINE)
_PROC = Path("/proc")


@dataclass(frozen=True)
class TreeMemory:
    """The memory of some processes; a page that they share counts for each."""

    processes: int
    rss_bytes: int
    swap_bytes: int
    largest_bytes: int  # the peak RSS that one process has had, which no sample may have seen


def tree_memory(pids: Collection[int], proc: Path = _PROC) -> TreeMemory:
    """Returns the memory of those of the processes that still exist."""
    found = [fields for pid in pids if (fields := _fields(proc / str(pid) / "status"))]
    return TreeMemory(
        processes=len(found),
        rss_bytes=sum(fields.get("VmRSS", 0) for fields in found),
        swap_bytes=sum(fields.get("VmSwap", 0) for fields in found),
        largest_bytes=max((fields.get("VmHWM", 0) for fields in found), default=0),
    )


def proportional_bytes(pids: Collection[int]) -> int | None:
    """Returns the PSS of the processes, where a page counts once however many share it.

    None where one is another user's, or none is left. Waits for a process that holds its memory map.
    """
    total = 0
    for pid in pids:
        size = pss_of(pid)
        if size is None and _fields(_PROC / str(pid) / "status"):  # not one that has just ended
            return None
        total += size or 0
    return total or None


class PssWatch:
    """Measures PSS beside the caller: at each look while that is cheap, less often where it takes long."""

    def __init__(
        self,
        measure: Callable[[Collection[int]], int | None] = proportional_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._clock = measure, clock
        self._asked: SimpleQueue[Collection[int]] = SimpleQueue()
        self._found: SimpleQueue[tuple[int | None, float]] = SimpleQueue()
        self._is_busy, self._due = False, -float("inf")
        threading.Thread(target=self._serve, daemon=True).start()

    def look(self, pids: Collection[int]) -> int | None:
        """Returns a new measurement, of these processes or of those before; None where there is none."""
        if not self._is_busy:
            if self._clock() < self._due:
                return None
            self._is_busy = True
            self._asked.put(pids)
        try:
            size, spent_s = self._found.get(timeout=PSS_WAIT_S)
        except Empty:
            return None
        self._is_busy, self._due = False, self._clock() + spent_s / PSS_SHARE
        return size

    def _serve(self) -> None:
        while True:
            pids, began = self._asked.get(), self._clock()
            self._found.put((self._measure(pids), self._clock() - began))


def _fields(path: Path) -> dict[str, int]:
    """Returns the bytes by name; none of a process that is gone."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name.decode(): int(kilobytes) * 1024 for name, kilobytes in _LINE.findall(text)}
