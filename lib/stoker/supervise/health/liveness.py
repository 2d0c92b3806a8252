"""Judges whether the trainer is alive: limits on the time without progress and without work, by phase.

Progress is a higher step, or more done within an evaluation or a save; a trainer that only talks, or goes
from phase to phase, makes none. Work is the CPU time and the bytes of its processes, read from /proc.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.config.schema import Supervise
from stoker.kit.process import sample_process

COMPILE_S = 1800.0  # compiling a large model takes longer than any step
WINDOW_STEPS = 512  # an hour of seven-second steps; one slow step in a hundred leaves the p99 as it is
IDLE_SHARE = 0.01  # a sleeping interpreter's housekeeping threads stay well below a hundredth of a core
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # the process ended while /proc was read

State = Literal["alive", "suspect", "stop"]


def limit_s(policy: Supervise, phase: str) -> float:
    """Returns the longest time without progress in a phase, in seconds, whatever work is done."""
    own_s: float | None = getattr(policy.limits, phase.replace("-", "_"), None)
    if own_s is not None:
        return own_s
    return max(2 * policy.hang_limit, COMPILE_S) if phase == "compile" else policy.hang_limit


def judge(
    phase: str,
    *,
    quiet_s: float,
    still_s: float,
    p99_s: float | None,
    policy: Supervise,
    is_read: bool = False,
) -> tuple[State, str]:
    """Returns the verdict on a trainer, and why; call it after all its messages are read.

    Seconds without progress in this phase (`quiet_s`) and since the last work of its processes (`still_s`);
    `p99_s` is the step time. Each phase has its limit for itself. Only `train` has shorter limits, which
    follow the step time: in other phases a single fsync or a first kernel may take minutes without a sign of
    life. A wait for data that is believed is no time without progress. A trainer that `is_read` by its output
    alone prints some steps, when it likes, and tells no phase: it has the phase's limit only.
    """
    longest_s, idle_s = limit_s(policy, phase), policy.limits.idle
    if quiet_s >= longest_s:
        return "stop", f"in phase {phase} for {quiet_s:.0f} s without progress (the limit is {longest_s:g} s)"
    if phase != "train" or is_read:
        is_late, why = quiet_s >= longest_s / 2, f"no progress in phase {phase} for {quiet_s:.0f} s"
        return ("suspect", why) if is_late else ("alive", "")
    step_s = p99_s or 0.0
    stop_s = max(idle_s, 10 * step_s)
    if quiet_s >= stop_s and still_s >= stop_s:
        return "stop", f"no step for {quiet_s:.0f} s, and no CPU time or I/O in its tree for {still_s:.0f} s"
    if quiet_s >= min(max(idle_s / 3, 5 * step_s), longest_s / 2):
        return "suspect", f"no step for {quiet_s:.0f} s; the slowest of a hundred takes {step_s:.1f} s"
    return "alive", ""


@dataclass(frozen=True)
class StepTimes:
    """The seconds of the last 512 steps, measured between the arrivals of consecutive steps."""

    times: tuple[float, ...] = ()
    last: tuple[int, float] | None = None

    def stepped(self, step: int, now: float) -> StepTimes:
        """Returns the times with a step reported now; steps between two reports share the time equally."""
        if self.last is None:
            return StepTimes(self.times, (step, now))
        if step <= self.last[0]:
            return self
        took_s = (now - self.last[1]) / (step - self.last[0])
        return StepTimes((*self.times, took_s)[-WINDOW_STEPS:], (step, now))

    def interrupted(self) -> StepTimes:
        """Returns the times without a last step: the next interval is not a step's time."""
        return StepTimes(self.times)

    def p99_s(self) -> float | None:
        """Returns the 99th percentile in seconds, None before the first interval."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else None


@dataclass(frozen=True)
class Work:
    """The work of processes so far: CPU seconds, and bytes through read and write calls; their memory now."""

    cpu_s: float = 0.0
    moved_bytes: int = 0
    rss_bytes: int = 0


def work_of(pids: Iterable[int], proc: Path = Path("/proc")) -> Work:
    """Returns the work of these processes so far, without those that have ended."""
    cpu_s, moved, rss = 0.0, 0, 0
    for pid in pids:
        with contextlib.suppress(*GONE):
            sample = sample_process(pid, proc)
            cpu_s, rss = cpu_s + sample.cpu_s, rss + sample.rss_bytes
            lines = (proc / str(pid) / "io").read_text(encoding="ascii").splitlines()
            counts = dict(line.split(": ") for line in lines)
            moved += int(counts["rchar"]) + int(counts["wchar"])
    return Work(cpu_s, moved, rss)


@dataclass(frozen=True)
class Stillness:
    """When processes last did more than idle, by samples; times are monotonic seconds."""

    sampled_at: float
    worked_at: float
    work: Work = Work()

    def sampled(self, work: Work, now: float) -> Stillness:
        """Returns the stillness after a sample; less work (a process has ended) is a sign of life too."""
        idle_s = IDLE_SHARE * (now - self.sampled_at)
        gained_s = work.cpu_s - self.work.cpu_s
        worked = gained_s < 0 or gained_s > idle_s or work.moved_bytes != self.work.moved_bytes
        return Stillness(now, now if worked else self.worked_at, work)
