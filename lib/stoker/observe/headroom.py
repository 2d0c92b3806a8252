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
            count, left = _look_at_v2(group) if version == 2 else _look_at_v1(group)
            if count is not None:
                kills[str(group)] = count
            if left is not None:
                slack.append(left)
        return MemoryFacts(max(0, min(slack)), kills)


def _look_at_v2(group: Path) -> tuple[int | None, int | None]:
    kills = fields(group / "memory.events").get("oom_kill")
    most, used = number(group / "memory.max"), number(group / "memory.current")
    if most is None or used is None:
        return kills, None
    stat = fields(group / "memory.stat")
    cache = stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
    return kills, most - max(0, used - cache)


def _look_at_v1(group: Path) -> tuple[int | None, int | None]:
    kills = fields(group / "memory.oom_control").get("oom_kill")
    most, used = number(group / "memory.limit_in_bytes"), number(group / "memory.usage_in_bytes")
    if most is None or used is None or most > UNLIMITED:
        return kills, None
    stat = fields(group / "memory.stat")
    cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return kills, most - max(0, used - cache)
