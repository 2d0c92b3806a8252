"""Measures how busy this process's part of the machine is: idle CPUs, and waits for CPU, disk and memory.

Each figure covers the time between two calls of `look`. A figure that the kernel does not give (PSI needs
Linux 4.20, and can be off) is None and decides nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from stoker.observe.cgroups import fields, groups_of, lines, number

_BUSY_FIELDS = 8  # user to steal in a line of /proc/stat; user already contains guest time
_IDLE, _IOWAIT = 3, 4


@dataclass(frozen=True)
class Pressure:
    """How busy the machine was over a time; the `_some` are PSI's shares of that time, 0 to 1."""

    cpus: float  # that this process may use
    idle_cpus: float  # of those
    cpu_some: float | None = None  # some task waited for a CPU; io, memory: for the disk, for memory
    io_some: float | None = None
    memory_some: float | None = None


@dataclass(frozen=True)
class _Counters:
    at: float
    idle: dict[int, tuple[int, int]]  # idle ticks and all ticks, by CPU
    waited: dict[str, int]  # microseconds by resource
    used_us: dict[Path, int]  # CPU time by cgroup with a quota


class PressureGauge:
    """Measures pressure between two calls of `look`, the first time since it was made."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        cpus: Collection[int] | None = None,
    ) -> None:
        self._proc, self._clock = proc, clock
        self._mine = frozenset(os.sched_getaffinity(0) if cpus is None else cpus)
        self._quotas = _quotas(proc)
        self._before = self._count()

    @property
    def cpus(self) -> float:
        """The number of CPUs this process may use at once: by affinity, or less by a cgroup's quota."""
        return min([float(len(self._mine)), *self._quotas.values()])

    def look(self) -> Pressure | None:
        """Returns the figures since the last call; None where no time has passed."""
        self._quotas = _quotas(self._proc)  # the limits of a running service can change
        before, self._before = self._before, self._count()
        now = self._before
        elapsed_s = now.at - before.at
        if elapsed_s <= 0:
            return None
        idle = 0.0
        for cpu, (idle_ticks, all_ticks) in now.idle.items():
            idle_before, all_before = before.idle.get(cpu, (idle_ticks, all_ticks))
            if all_ticks > all_before:
                idle += (idle_ticks - idle_before) / (all_ticks - all_before)
        left = [
            quota - (now.used_us[group] - before.used_us[group]) / 1e6 / elapsed_s
            for group, quota in self._quotas.items()
            if group in now.used_us and group in before.used_us
        ]
        waited = {
            name: min(1.0, (total - before.waited[name]) / 1e6 / elapsed_s)
            for name, total in now.waited.items()
            if name in before.waited
        }
        some = (waited.get(name) for name in ("cpu", "io", "memory"))
        return Pressure(self.cpus, max(0.0, min([idle, *left])), *some)

    def _count(self) -> _Counters:
        idle = {}
        for line in lines(self._proc / "stat"):
            name, *ticks = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._mine:
                counts = [int(each) for each in ticks[:_BUSY_FIELDS]]
                idle[int(name[3:])] = (counts[_IDLE] + counts[_IOWAIT], sum(counts))
        told = {name: _waited(self._proc / "pressure" / name) for name in ("cpu", "io", "memory")}
        waited = {name: total for name, total in told.items() if total is not None}
        used = {group: us for group in self._quotas if (us := _used_us(group)) is not None}
        return _Counters(self._clock(), idle, waited, used)


def _waited(file: Path) -> int | None:
    """Returns the microseconds in which some task waited, from the line `some avg10=0.00 ... total=123`."""
    found = re.search(r"^some .*total=(\d+)", "\n".join(lines(file)), re.MULTILINE)
    return int(found[1]) if found else None


def _quotas(proc: Path) -> dict[Path, float]:
    """Returns the number of CPUs that each cgroup with a quota may use at once."""
    found = {}
    for version, group in groups_of(proc, "cpu"):
        if version == 2:
            most, _, period = " ".join(lines(group / "cpu.max")).partition(" ")
        else:
            most = str(number(group / "cpu.cfs_quota_us") or "")  # -1 (None by `number`): no quota
            period = str(number(group / "cpu.cfs_period_us") or "")
        if most.isdigit() and period.isdigit() and int(period):
            found[group] = int(most) / int(period)
    return found


def _used_us(group: Path) -> int | None:
    used = fields(group / "cpu.stat").get("usage_usec")
    if used is None and (nanoseconds := number(group / "cpuacct.usage")) is not None:
        used = nanoseconds // 1000
    return used
