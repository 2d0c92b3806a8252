"""Measures how much memory this process can still allocate, and whether the kernel killed for lack of memory.

The limit is the least of the machine's and of all cgroups' (see `cgroups`), so all of them are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.observe.cgroups import fields, groups_of, number

UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2^63
# By cgroup version: the files of kills, limit and use; the memory that the kernel reclaims before it kills.
FILES = {
    1: ("memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.events", "memory.max", "memory.current"),
}
CACHE = {
    1: ("total_inactive_file", "total_active_file"),
    2: ("inactive_file", "active_file", "slab_reclaimable"),
}


@dataclass(frozen=True)
class MemoryFacts:
    """The memory available at one moment, and the kernel's kills so far."""

    headroom_bytes: int  # that can be allocated before the kernel must kill
    oom_kills: Mapping[str, int] = field(default_factory=dict)  # by "machine" or cgroup, with its children

    def killed_since(self, before: MemoryFacts) -> bool:
        """Returns whether the kernel has killed for lack of memory since earlier facts."""
        return any(count > before.oom_kills.get(who, count) for who, count in self.oom_kills.items())


class MemoryWatch:
    """Reads the memory limits of this process; looks for its cgroups only once, since they do not change."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(groups_of(proc, "memory"))

    def look(self) -> MemoryFacts:
        """Returns the current facts, from some ten small files."""
        available = fields(self._proc / "meminfo", ":").get("MemAvailable", 0) * 1024
        slack, kills = [available], {}
        with contextlib.suppress(KeyError):
            kills["machine"] = fields(self._proc / "vmstat")["oom_kill"]
        for version, group in self._groups:
            events, limit, use = (group / name for name in FILES[version])
            if (count := fields(events).get("oom_kill")) is not None:
                kills[str(group)] = count
            most, used = number(limit), number(use)
            if most is not None and used is not None and most < UNLIMITED:
                stat = fields(group / "memory.stat")
                slack.append(most - max(0, used - sum(stat.get(name, 0) for name in CACHE[version])))
        return MemoryFacts(max(0, min(slack)), kills)
