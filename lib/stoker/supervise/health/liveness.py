"""Is the trainer alive: limits on silence and on stillness, by what it says it is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.supervise.health.moment import Moment

SUSPECT_S = 20.0
STOP_S = 60.0
COMPILE_S = 1800.0  # compiling a large model takes longer than any step
TALKING = frozenset({"eval", "wait-data"})  # a word now and then is all the progress these can show
WINDOW_STEPS = 512  # an hour of seven-second steps; one odd step in a hundred does not move the p99


@dataclass(frozen=True)
class Silence:
    """Seconds since the last word, since the last new step or phase, and since the tree last did any work."""

    unheard_s: float
    unmoved_s: float
    still_s: float


@dataclass(frozen=True)
class Verdict:
    state: Literal["alive", "suspect", "stop"]
    why: str = ""


def judge(phase: str, silence: Silence, p99_s: float | None, hang_s: float) -> Verdict:
    """The verdict on a trainer, by the configured hang limit; call it after every word has been read.

    Only `train` has short limits, which follow the step time: elsewhere a single fsync or a first kernel may
    take minutes without a sign of life. Waiting for data may last for ever, as long as the trainer says so.
    """
    quiet_s = silence.unheard_s if phase in TALKING else silence.unmoved_s
    limit_s = max(2 * hang_s, COMPILE_S) if phase == "compile" else hang_s
    if quiet_s >= limit_s:
        why = f"in phase {phase} for {quiet_s:.0f} s without a step (the limit is {limit_s:g} s)"
        return Verdict("stop", why)
    if phase != "train":
        return Verdict("alive")
    step_s = p99_s or 0.0
    stop_s = max(STOP_S, 10 * step_s)
    if quiet_s >= stop_s and silence.still_s >= stop_s:
        return Verdict(
            "stop",
            f"no step for {quiet_s:.0f} s, and no CPU time or I/O in its tree for {silence.still_s:.0f} s",
        )
    if quiet_s >= max(SUSPECT_S, 5 * step_s):
        return Verdict(
            "suspect", f"no step for {quiet_s:.0f} s; the slowest of a hundred takes {step_s:.1f} s"
        )
    return Verdict("alive")


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step takes, from the arrival of steps that follow one another, over the last 512 of them."""

    times: tuple[float, ...] = ()
    last: tuple[int, Moment] | None = None

    def stepped(self, step: int, now: float) -> StepTimes:
        """With a step that was named now; several at once (after a stopped supervisor) share their time."""
        times = self.times
        if self.last is not None and step > self.last[0]:
            times = (*times, (now - self.last[1]) / (step - self.last[0]))[-WINDOW_STEPS:]
        moved = self.last is None or step != self.last[0]
        return StepTimes(times, (step, now) if moved else self.last)

    def interrupted(self) -> StepTimes:
        """Something other than a step came between: the next interval is not a step's time."""
        return StepTimes(self.times)

    def p99_s(self) -> float | None:
        """The 99th percentile in seconds, None before the first interval."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else None
