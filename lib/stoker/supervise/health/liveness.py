"""Is the trainer alive: limits on silence and on stillness, by what it says it is doing.

The evidence is of two kinds: its words, and the CPU time and bytes of its processes, read from /proc.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.kit.process.sampler import sample_process
from stoker.supervise.health.trainer_protocol import Moment

SUSPECT_S = 20.0
STOP_S = 60.0
COMPILE_S = 1800.0  # compiling a large model takes longer than any step
TALKING = frozenset({"eval", "wait-data"})  # a word now and then is all the progress these can show
WINDOW_STEPS = 512  # an hour of seven-second steps; one odd step in a hundred does not move the p99
IDLE_SHARE = 0.01  # a sleeping interpreter's housekeeping threads stay well below a hundredth of a core
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # the process, while /proc is read

State = Literal["alive", "suspect", "stop"]


def judge(
    phase: str, *, unheard_s: float, unmoved_s: float, still_s: float, p99_s: float | None, hang_s: float
) -> tuple[State, str]:
    """The verdict on a trainer, and why; call it after every word has been read.

    Seconds since the last word, since the last new step or phase, and since its processes last did any work;
    `hang_s` is the configured limit. Only `train` has short limits, which follow the step time: elsewhere a
    single fsync or a first kernel may take minutes without a sign of life. Waiting for data may last for
    ever, as long as the trainer says so.
    """
    quiet_s = unheard_s if phase in TALKING else unmoved_s
    limit_s = max(2 * hang_s, COMPILE_S) if phase == "compile" else hang_s
    if quiet_s >= limit_s:
        return "stop", f"in phase {phase} for {quiet_s:.0f} s without a step (the limit is {limit_s:g} s)"
    if phase != "train":
        return "alive", ""
    step_s = p99_s or 0.0
    stop_s = max(STOP_S, 10 * step_s)
    if quiet_s >= stop_s and still_s >= stop_s:
        return "stop", f"no step for {quiet_s:.0f} s, and no CPU time or I/O in its tree for {still_s:.0f} s"
    if quiet_s >= max(SUSPECT_S, 5 * step_s):
        return "suspect", f"no step for {quiet_s:.0f} s; the slowest of a hundred takes {step_s:.1f} s"
    return "alive", ""


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step takes, from the arrival of steps that follow one another, over the last 512 of them."""

    times: tuple[float, ...] = ()
    last: tuple[int, Moment] | None = None

    def stepped(self, step: int, now: float) -> StepTimes:
        """With a step that was named now; several at once (after a stopped supervisor) share their time."""
        if self.last is None or step < self.last[0]:
            return StepTimes(self.times, (step, now))
        if step == self.last[0]:
            return self
        took_s = (now - self.last[1]) / (step - self.last[0])
        return StepTimes((*self.times, took_s)[-WINDOW_STEPS:], (step, now))

    def interrupted(self) -> StepTimes:
        """Something other than a step came between: the next interval is not a step's time."""
        return StepTimes(self.times)

    def p99_s(self) -> float | None:
        """The 99th percentile in seconds, None before the first interval."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else None


@dataclass(frozen=True)
class Work:
    """What processes have done so far: CPU seconds and bytes through read and write calls."""

    cpu_s: float = 0.0
    moved_bytes: int = 0


def work_of(pids: Iterable[int], proc: Path = Path("/proc")) -> Work:
    """The work of these processes so far; one that ended meanwhile counts nothing."""
    cpu_s, moved = 0.0, 0
    for pid in pids:
        with contextlib.suppress(*GONE):
            cpu_s += sample_process(pid, proc).cpu_s
            lines = (proc / str(pid) / "io").read_text(encoding="ascii").splitlines()
            counts = dict(line.split(": ") for line in lines)
            moved += int(counts["rchar"]) + int(counts["wchar"])
    return Work(cpu_s, moved)


def describe(pids: Iterable[int]) -> Iterator[str]:
    """Where each process stands, as `pid name state wchan`: what is known of it without its help."""
    for pid in pids:
        with contextlib.suppress(*GONE):
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            where = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip()
            name, _, rest = stat.partition("(")[2].rpartition(")")
            yield f"{pid} {name} {rest.split()[0]} {where or '-'}"


@dataclass(frozen=True)
class Stillness:
    """Since when processes have done nothing worth the name, by samples; times are monotonic seconds."""

    sampled_at: Moment
    worked_at: Moment
    work: Work = Work()

    def sampled(self, work: Work, now: float) -> Stillness:
        """With one more sample; less work than before (one of the processes ended) is a sign of life too."""
        idle_s = IDLE_SHARE * (now - self.sampled_at)
        gained_s = work.cpu_s - self.work.cpu_s
        worked = gained_s < 0 or gained_s > idle_s or work.moved_bytes != self.work.moved_bytes
        return Stillness(now, now if worked else self.worked_at, work)
