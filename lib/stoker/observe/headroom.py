"""Memory as the kernel sees it for us: how much may still be taken, and whether it has killed for want of it.

What bounds a process is the least of the machine and of every cgroup it is in, so all of them are asked: its
own and each above it, version 1 and 2. What cannot be read (a container hides what is above it) is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.observe.cgroups import fields, groups_of, number

UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2^63
# By version of the cgroup: the files of kills, limit and use, and what the kernel takes back before it kills.
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
    """One look: bytes that may be taken before the kernel has to kill, and its kills so far, by who counts.

    The count of a cgroup includes those below it.
    """

    headroom_bytes: int
    oom_kills: Mapping[str, int] = field(default_factory=dict)

    def killed_since(self, before: MemoryFacts) -> bool:
        """Whether the kernel has killed for want of memory since another look."""
        return any(count > before.oom_kills.get(who, count) for who, count in self.oom_kills.items())


class MemoryWatch:
    """Looks at what bounds this process and its children; finds its cgroups once: they stay."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(groups_of(proc, "memory"))

    def look(self) -> MemoryFacts:
        """Read everything again; some ten small files."""
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
