"""Sums what a daemon's processes hold and use, by role.

A role's counters never fall: what a process used stays in its role's sums when the process ends. What it used
after the last look at it is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.kit.metrics import Figure
from stoker.kit.process import ProcessId, Usage, Used, usage_of
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR

DAEMON, FETCHER, BUILDER, WORKER = "daemon", "fetcher", "builder", "worker"
GUARD, TRAINER, SEALER = "guard", "trainer", "sealer"
ROLES: Mapping[str, tuple[str, ...]] = {
    DOWNLOAD_WATCHDOG: (DAEMON, FETCHER, WORKER),
    STAGE_SHARD: (DAEMON, BUILDER, WORKER),
    TRAIN_SUPERVISOR: (DAEMON, GUARD, TRAINER, SEALER, WORKER),
}
SEALING = b"stoker.checkpoints."  # in the command line of what a trainer starts to seal its checkpoints
STARTERS = (DAEMON, GUARD)  # single-threaded but for the metrics; they do little and start what does much


def process_figures(daemon: str) -> tuple[Figure, ...]:
    """Returns the metrics of what a ProcessTotals returns, and of the memory to spare."""

    def by_role(name: str, doc: str, key: str) -> Figure:
        return Figure(name, doc, f"processes.*.{key}", {"role": ROLES[daemon]})

    return (
        Figure("memory_headroom_bytes", "Bytes that may be taken before the kernel kills.", "headroom_bytes"),
        by_role("processes", "Processes of the daemon, by role.", "count"),
        by_role(
            "process_rss_bytes",
            "Resident bytes of the role; shared pages count in each process.",
            "rss_bytes",
        ),
        by_role("process_pss_bytes", "Resident bytes of the role; shared pages are divided.", "pss_bytes"),
        by_role("process_swap_bytes", "Bytes of the role swapped out.", "swap_bytes"),
        by_role("process_cpu_seconds_total", "Seconds of CPU time of the role.", "cpu_s"),
        by_role(
            "process_major_faults_total", "Page faults of the role that read from storage.", "major_faults"
        ),
        by_role("process_read_bytes_total", "Bytes that the role read from storage.", "read_bytes"),
        by_role("process_write_bytes_total", "Bytes that the role wrote to storage.", "write_bytes"),
    )


Read = Callable[..., Usage | None]  # reads one process, as `usage_of` does


def command_of(pid: int) -> bytes:
    """Returns a process's command line; empty where it has ended or is hidden."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class _Member:
    role: str
    parent: int
    counted: Used  # what stands in the sums of its role


class ProcessTotals:
    """The sums of all roles, from look to look; a process belongs to one role for its whole life."""

    def __init__(
        self, roles: Sequence[str], read: Read = usage_of, command: Callable[[int], bytes] = command_of
    ) -> None:
        self._read, self._command = read, command
        self._members: dict[ProcessId, _Member] = {}  # parents first
        self._used = dict.fromkeys(roles, Used())
        self.rss_bytes: dict[int, int] = {}  # by pid, at the last look

    def sample(
        self, tree: Mapping[ProcessId, int], roles: Mapping[int, str], pss: Mapping[ProcessId, int]
    ) -> dict[str, dict[str, Any]]:
        """Returns gauges and counters by role.

        `tree` has the processes, parents first, with their parents' pids; a known process that it misses is
        read all the same. `roles` are those of some pids; any other process has the role of its parent (below
        a guard: trainer), below the daemon worker. `pss` holds the known proportional sizes.
        """
        of_pid = {process.pid: member.role for process, member in self._members.items()} | {**roles}
        for process, parent in tree.items():
            if process not in self._members:
                role = roles.get(process.pid) or self._inherited(of_pid.get(parent), process.pid)
                self._members[process] = _Member(role, parent, Used())
            self._members[process].parent = parent
            of_pid[process.pid] = self._members[process].role
        usages = self._read_all()
        self.rss_bytes = {process.pid: usage.rss_bytes for process, usage in usages.items()}
        return {role: self._sum(role, usages, pss) for role in self._used}

    def _inherited(self, role: str | None, pid: int) -> str:
        if role not in (GUARD, TRAINER):
            return WORKER if role in (None, DAEMON) else role
        return SEALER if SEALING in self._command(pid) else TRAINER

    def _read_all(self) -> dict[ProcessId, Usage]:
        """Reads every process, adds what it used to its role's sums, and forgets the ended ones."""
        usages = {}
        for process in reversed(list(self._members)):
            member = self._members[process]
            usage = self._read(process, of_children=member.role not in STARTERS)
            if usage is None:
                self._forget(process)
                continue
            usages[process] = usage
            rise = (max(0, new - old) for new, old in zip(usage.used, member.counted, strict=True))
            self._used[member.role] = _plus(self._used[member.role], rise)
            member.counted = Used._make(map(max, usage.used, member.counted))
        return usages

    def _forget(self, process: ProcessId) -> None:
        """Forgets an ended process; its bytes, which the kernel adds to those of its parent, stay counted."""
        gone = self._members.pop(process)
        for other, member in self._members.items():
            if other.pid == gone.parent and member.role not in STARTERS:
                bytes_ = (0.0, 0, gone.counted.read_bytes, gone.counted.write_bytes)
                member.counted = _plus(member.counted, bytes_)

    def _sum(
        self, role: str, usages: Mapping[ProcessId, Usage], pss: Mapping[ProcessId, int]
    ) -> dict[str, Any]:
        mine = [process for process in usages if self._members[process].role == role]
        known = [pss[process] for process in mine if process in pss]
        used = self._used[role]
        return {
            "count": len(mine),
            "rss_bytes": sum(usages[process].rss_bytes for process in mine),
            "pss_bytes": sum(known) if known or not mine else None,
            "swap_bytes": sum(usages[process].swap_bytes for process in mine),
            **used._asdict(),
            "cpu_s": round(used.cpu_s, 2),
        }


def _plus(used: Used, more: Iterable[float]) -> Used:
    return Used._make(a + b for a, b in zip(used, more, strict=True))
