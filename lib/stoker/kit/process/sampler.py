"""Memory and CPU time of a process, read from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process.process_id import children_tree

_PAGE, _TICK_S = os.sysconf("SC_PAGE_SIZE"), 1 / os.sysconf("SC_CLK_TCK")
_USER_TICKS, _SYSTEM_TICKS, _RSS_PAGES = 11, 12, 21  # of /proc/PID/stat, counted after the command name


@dataclass(frozen=True)
class Sample:
    """Resident bytes now, and CPU seconds used so far by all threads."""

    rss_bytes: int
    cpu_s: float


def sample_process(pid: int, proc: Path = Path("/proc")) -> Sample:
    """Returns the sample of a process, zeros when it is gone. Reads /proc, which no hung mount blocks."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stream:  # noqa: PTH123 - many times a second
            text = stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return Sample(0, 0.0)
    fields = text[text.rindex(b")") + 2 :].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return Sample(int(fields[_RSS_PAGES]) * _PAGE, ticks * _TICK_S)


def sample_tree(pid: int) -> int:
    """Returns the resident bytes of a process and its descendants, 0 when gone; each counts shared pages."""
    pids = (pid, *(child.pid for child in children_tree(pid)))
    return sum(sample_process(each).rss_bytes for each in pids)


def own_peak_rss() -> int:
    """Returns the peak of this process's resident bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM:"))
