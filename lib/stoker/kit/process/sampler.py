"""What a process takes of the machine: read by itself in a worker, by pid in its daemon."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process.process_id import children_tree

SAMPLE_EVERY_S = 1.0
_PAGE, _TICK_S = os.sysconf("SC_PAGE_SIZE"), 1 / os.sysconf("SC_CLK_TCK")
_USER_TICKS, _SYSTEM_TICKS, _RSS_PAGES = 11, 12, 21  # of /proc/PID/stat, counted after the command name


@dataclass(frozen=True)
class Sample:
    """Resident bytes now, and CPU seconds used so far by all threads."""

    rss_bytes: int
    cpu_s: float


def sample_process(pid: int, proc: Path = Path("/proc")) -> Sample:
    """Look at a process from outside; nothing where it is gone. Reads /proc, which no hung mount blocks."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stream:  # noqa: PTH123 - many times a second
            text = stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return Sample(0, 0.0)
    fields = text[text.rindex(b")") + 2 :].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Sample(int(fields[_RSS_PAGES]) * _PAGE, ticks * _TICK_S)


def sample_tree(pid: int) -> int:
    """Resident bytes of a process and all its living descendants; shared pages count in each; 0 when gone."""
    pids = (pid, *(child.pid for child in children_tree(pid)))
    return sum(sample_process(each).rss_bytes for each in pids)


class Sampler:
    """Tells every second how this process stands while it is at work, from a thread of little cost.

    It speaks only when the daemon has read all that was said before: a daemon that does not listen for an
    hour finds no hour of samples, and the pipe's room stays for what counts.
    """

    def __init__(self, output: int, say: Callable[[Sample], None]) -> None:
        self._output, self._say = output, say
        self._working = threading.Event()
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def begin(self) -> None:
        """Work begins."""
        self._working.set()

    def pause(self) -> None:
        """Work ended; nothing is said until the next begins."""
        self._working.clear()

    def _run(self) -> None:
        while True:
            self._working.wait()
            if self._all_read():
                self._say(sample_process(os.getpid()))
            time.sleep(SAMPLE_EVERY_S)

    def _all_read(self) -> bool:
        try:
            answer = fcntl.ioctl(self._output, termios.FIONREAD, b"\0\0\0\0")
        except OSError:  # not a pipe: started by hand
            return False
        return struct.unpack("i", answer) == (0,)


def own_peak_rss() -> int:
    """The most resident bytes that this process has had so far."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM:"))
