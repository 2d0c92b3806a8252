"""Evidence that a process tree does something: CPU time and bytes moved, read from /proc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stoker.kit.process.sampler import sample_process
from stoker.supervise.health.moment import Moment

IDLE_SHARE = 0.01  # a sleeping interpreter's housekeeping threads stay well below a hundredth of a core


@dataclass(frozen=True)
class Work:
    """What a tree has done so far: CPU seconds and bytes through read and write calls."""

    cpu_s: float = 0.0
    moved_bytes: int = 0


def work_of(pids: Iterable[int], proc: Path = Path("/proc")) -> Work:
    """The work of these processes so far; one that ended meanwhile counts nothing."""
    cpu_s, moved = 0.0, 0
    for pid in pids:
        try:
            cpu_s += sample_process(pid, proc).cpu_s
            moved += _moved_bytes(proc / str(pid) / "io")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return Work(cpu_s, moved)


def describe(pids: Iterable[int]) -> list[str]:
    """Where each process stands, as `pid name state wchan`: what can be told of it without its help."""
    found = []
    for pid in pids:
        try:
            stat, where = (
                Path(f"/proc/{pid}/{file}").read_text(errors="replace") for file in ("stat", "wchan")
            )
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        found.append(f"{pid} {name} {rest.split()[0]} {where.strip() or '-'}")
    return found


@dataclass(frozen=True)
class Stillness:
    """Since when a tree has done nothing worth the name, by samples; times are monotonic seconds."""

    sampled_at: Moment
    worked_at: Moment
    work: Work = Work()

    @classmethod
    def started(cls, now: float) -> Stillness:
        return cls(now, now)

    def sampled(self, work: Work, now: float) -> Stillness:
        """With one more sample; less work than before (a member of the tree ended) is a sign of life too."""
        idle_s = IDLE_SHARE * (now - self.sampled_at)
        gained_s = work.cpu_s - self.work.cpu_s
        worked = gained_s < 0 or gained_s > idle_s or work.moved_bytes != self.work.moved_bytes
        return Stillness(now, now if worked else self.worked_at, work)


def _moved_bytes(io: Path) -> int:
    counts = dict(line.split(": ") for line in io.read_text(encoding="ascii").splitlines())
    return int(counts["rchar"]) + int(counts["wchar"])
