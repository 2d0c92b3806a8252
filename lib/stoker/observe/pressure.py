"""How busy the machine is, as far as it is ours: idle CPUs, and how much is waited for CPU, disk and memory.

Each figure is over the time between two looks. What a kernel does not tell (no PSI before 4.20, or switched
off) is None and decides nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from stoker.observe.cgroups import fields, groups_of, lines, number

_BUSY_FIELDS = 8  # user to steal of a line in /proc/stat; guests are counted in user already
_IDLE, _IOWAIT = 3, 4


@dataclass(frozen=True)
class Pressure:
    """One look: CPUs that we may use and how many of them idled; shares of the time, 0 to 1, in which
    something (not all) waited for a CPU, for the disk or for memory."""

    cpus: float
    idle_cpus: float
    cpu_some: float | None = None
    io_some: float | None = None
    memory_some: float | None = None


@dataclass(frozen=True)
class _Counters:
    at: float
    idle: dict[int, tuple[int, int]]  # idle and all ticks by CPU
    waited: dict[str, int]  # microseconds by resource
    used_us: dict[Path, int]  # CPU time by cgroup with a quota


class PressureGauge:
    """Looks when asked; the first figures come with the second look."""

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
        """How many CPUs we may use at once: those we may run on, less if a cgroup has a quota."""
        return min([float(len(self._mine)), *self._quotas.values()])

    def look(self) -> Pressure | None:
        """The figures since the last look; None where no time has passed."""
        self._quotas = _quotas(self._proc)  # a service's limits may be changed while it runs
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
    """The microseconds in which some task waited, from the line `some avg10=0.00 ... total=123`."""
    found = re.search(r"^some .*total=(\d+)", "\n".join(lines(file)), re.MULTILINE)
    return int(found[1]) if found else None


def _quotas(proc: Path) -> dict[Path, float]:
    """CPUs that each cgroup above us may use at once, of those that have a quota."""
    found = {}
    for version, group in groups_of(proc, "cpu"):
        if version == 2:
            most, _, period = " ".join(lines(group / "cpu.max")).partition(" ")
        else:
            most = str(number(group / "cpu.cfs_quota_us") or "")  # -1, no number here, is no quota
            period = str(number(group / "cpu.cfs_period_us") or "")
        if most.isdigit() and period.isdigit() and int(period):
            found[group] = int(most) / int(period)
    return found


def _used_us(group: Path) -> int | None:
    used = fields(group / "cpu.stat").get("usage_usec")
    if used is None and (nanoseconds := number(group / "cpuacct.usage")) is not None:
        used = nanoseconds // 1000
    return used
