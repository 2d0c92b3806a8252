"""Measures the part of the machine that this process may use: CPUs, waits for resources, and memory to spare.

The limit of a process is the least of the machine's and of all its cgroups': its own and each parent, version
1 and 2. Unreadable groups are left out: a container hides the parents of its group. A figure that the kernel
does not give (PSI needs Linux 4.20, and can be off) is None and decides nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_BUSY_FIELDS = 8  # user to steal in a line of /proc/stat; user already contains guest time
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2^63
# By cgroup version: the files of kills, limit and use; the memory that the kernel reclaims before it kills.
_MEMORY_FILES = {
    1: ("memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.events", "memory.max", "memory.current"),
}
_CACHE = {
    1: ("total_inactive_file", "total_active_file"),
    2: ("inactive_file", "active_file", "slab_reclaimable"),
}


# Memory


@dataclass(frozen=True)
class MemoryFacts:
    headroom_bytes: int  # that can be allocated before the kernel must kill
    oom_kills: int = 0  # so far, counted by the machine and once more by each cgroup


class MemoryWatch:
    """Reads the memory limits of this process; looks for its cgroups only once, since they do not change."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(_groups_of(proc, "memory"))

    def sample(self) -> MemoryFacts:
        """Returns the current facts, from some ten small files."""
        kills = _fields(self._proc / "vmstat", "oom_kill").get("oom_kill", 0)
        slack = [_fields(self._proc / "meminfo", "MemAvailable").get("MemAvailable", 0) * 1024]
        for version, group in self._groups:
            events, limit, use = (group / name for name in _MEMORY_FILES[version])
            kills += _fields(events, "oom_kill").get("oom_kill", 0)
            most, used = _number(limit), _number(use)
            if most is not None and used is not None and most < _UNLIMITED:
                stat = _fields(group / "memory.stat", *_CACHE[version])
                slack.append(most - max(0, used - sum(stat.get(name, 0) for name in _CACHE[version])))
        return MemoryFacts(max(0, min(slack)), kills)

    def tree_kills(self) -> int:
        """Returns how often the kernel has killed for want of memory: below our cgroup, else on the machine.

        Only version 2 counts what it kills in the groups below, and its root counts nothing.
        """
        kills = (
            _fields(group / "memory.events", "oom_kill").get("oom_kill")
            for version, group in self._groups
            if version == 2
        )
        of_group = next(kills, None)
        return _fields(self._proc / "vmstat", "oom_kill").get("oom_kill", 0) if of_group is None else of_group


# CPUs and waits


@dataclass(frozen=True)
class Pressure:
    """How busy the machine was over a time; the `_some` are PSI's shares of that time, 0 to 1."""

    cpus: float  # that this process may use
    idle_cpus: float  # of those
    cpu_some: float | None = None  # some task waited for a CPU; io, memory: for the disk, for memory
    io_some: float | None = None
    memory_some: float | None = None
    steal: float = 0.0  # share of these CPUs' time that a hypervisor gave to others


@dataclass(frozen=True)
class _Counters:
    at: float
    idle_ticks: int  # of the CPUs that this process may use
    all_ticks: int
    stolen_ticks: int
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

    def sample(self) -> Pressure | None:
        """Returns the figures since the last call; None where no time has passed."""
        self._quotas = _quotas(self._proc)  # the limits of a running service can change
        before, self._before = self._before, self._count()
        now = self._before
        elapsed_s = now.at - before.at
        if elapsed_s <= 0:
            return None
        ticks = now.all_ticks - before.all_ticks
        idle = len(self._mine) * (now.idle_ticks - before.idle_ticks) / ticks if ticks > 0 else 0.0
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
        cpu, io, memory = (waited.get(name) for name in ("cpu", "io", "memory"))
        stolen = (now.stolen_ticks - before.stolen_ticks) / ticks if ticks > 0 else 0.0
        return Pressure(self.cpus, max(0.0, min([idle, *left])), cpu, io, memory, stolen)

    def _count(self) -> _Counters:
        idle_ticks = all_ticks = stolen_ticks = 0
        for line in _lines(self._proc / "stat"):
            name, *ticks = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._mine:
                counts = [int(each) for each in ticks[:_BUSY_FIELDS]]
                idle_ticks += counts[_IDLE] + counts[_IOWAIT]
                all_ticks += sum(counts)
                stolen_ticks += counts[_STEAL] if len(counts) > _STEAL else 0
        waited = {}
        for name in ("cpu", "io", "memory"):
            text = "\n".join(_lines(self._proc / "pressure" / name))
            if found := re.search(r"^some .*total=(\d+)", text, re.MULTILINE):
                waited[name] = int(found[1])
        used = {group: us for group in self._quotas if (us := _used_us(group)) is not None}
        return _Counters(self._clock(), idle_ticks, all_ticks, stolen_ticks, waited, used)


def _quotas(proc: Path) -> dict[Path, float]:
    """Returns the number of CPUs that each cgroup with a quota may use at once."""
    found = {}
    for version, group in _groups_of(proc, "cpu"):
        if version == 2:
            most, _, period = " ".join(_lines(group / "cpu.max")).partition(" ")
        else:
            most = str(_number(group / "cpu.cfs_quota_us") or "")  # -1 (None by `_number`): no quota
            period = str(_number(group / "cpu.cfs_period_us") or "")
        if most.isdigit() and period.isdigit() and int(period):
            found[group] = int(most) / int(period)
    return found


def _used_us(group: Path) -> int | None:
    used = _fields(group / "cpu.stat", "usage_usec").get("usage_usec")
    if used is None and (nanoseconds := _number(group / "cpuacct.usage")) is not None:
        used = nanoseconds // 1000
    return used


# Control groups and the kernel's small files


def _groups_of(proc: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yields version and directory of this process's cgroups of a controller, with all mounted parents."""
    ours = {}
    for line in _lines(proc / "self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            ours[2 if number == "0" else 1] = path
    for line in _lines(proc / "self/mountinfo"):
        about_mount, _, about = line.partition(" - ")
        kind, _, options = about.partition(" ")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version not in ours or (version == 1 and controller not in options.split()[-1].split(",")):
            continue
        root, mount = about_mount.split()[3:5]
        inside = ours[version] if root == "/" else ours[version].removeprefix(root)
        top = Path(mount)
        group = top / inside.lstrip("/")
        while group != top.parent and group.is_relative_to(top):
            if group.is_dir():
                yield version, group
            group = group.parent


def _number(file: Path) -> int | None:
    """Returns the number in a file; None for an unreadable file, or one that holds `max`."""
    text = " ".join(_lines(file))
    return int(text) if text.isdigit() else None


def _fields(file: Path, *names: str) -> dict[str, int]:
    """Returns numbers of a file by name, from lines "name number" or "name: number"."""
    # Of the 190 lines of vmstat, read at each wake-up, one is taken apart.
    pairs = (line.split() for line in _lines(file) if line.startswith(names))
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def _lines(file: Path) -> list[str]:
    """Returns the lines of a file; none where this kernel has no such file, or a container hides it."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
