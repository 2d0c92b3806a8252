"""How much memory a process has, and how much the machine has left."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySample:
    """One look at one process, in bytes; the peak is over its life."""

    rss_bytes: int
    peak_rss_bytes: int
    swap_bytes: int
    available_bytes: int  # of the machine, without swapping


def sample_memory(pid: int | None = None) -> MemorySample:
    """Look at a process, by default this one; ProcessLookupError when it is gone."""
    fields = _status(os.getpid() if pid is None else pid)
    return MemorySample(
        rss_bytes=fields.get("VmRSS", 0),
        peak_rss_bytes=fields.get("VmHWM", 0),
        swap_bytes=fields.get("VmSwap", 0),
        available_bytes=_kilobytes("/proc/meminfo")["MemAvailable"],
    )


def _status(pid: int) -> dict[str, int]:
    """The kB fields of /proc/PID/status, in bytes; a zombie has none."""
    try:
        return _kilobytes(f"/proc/{pid}/status")
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def _kilobytes(file: str) -> dict[str, int]:
    with open(file, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
        lines = stream.read().splitlines()
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value.split()[0]) * 1024
    return fields
