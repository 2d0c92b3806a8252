"""Where a run's time goes: each second in one bucket, from the run's begin to its finish.

Goodput is the share of the time in steps that a proven checkpoint holds, each step counted once. The time of
a step counts as neither until its fate is known: a proven checkpoint holds it, or a launch goes on before it.
A step that is made again after one of its kind was held (after a rollback) is redone, so no count ever falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STEPS = "steps"
BUCKETS = (
    STEPS,
    "launch",  # clearing the way, and processes that begin or end
    "load",
    "compile",
    "save_stall",
    "eval",
    "data_wait",
    "redone",  # steps lost, or made again
    "backoff",
    "proving",
    "evaluation",  # between two launches, on the device that the trainer has let go
    "halted",
    "down",  # no supervisor ran
)
MOST_SPANS = 512  # of steps without a proven checkpoint; then each holds twice as many steps

_OF_PHASE = {
    "cleaning": "launch",
    "proving": "proving",
    "backoff": "backoff",
    "waiting": "data_wait",
    "halted": "halted",
}
_OF_TRAINER = {
    "load": "load",
    "compile": "compile",
    "train": STEPS,
    "eval": "eval",
    "checkpoint": "save_stall",
    "wait-data": "data_wait",
}


def bucket_of(phase: str, doing: str | None, *, evaluates: bool = False) -> str | None:
    """Returns the bucket of the time in a phase of the supervisor; None where the run is over.

    `doing` is the phase of a running trainer, "" before its first word and after its last; `evaluates`: no
    launch is made while a checkpoint is evaluated.
    """
    if evaluates and phase == "waiting":
        return "evaluation"
    return _OF_PHASE.get(phase) if doing is None else _OF_TRAINER.get(doing, "launch")


@dataclass
class Goodput:
    """The account; times are seconds of one monotonic clock, which goes on while the machine sleeps."""

    at: float  # up to which time is counted
    bucket: str | None = None  # of the time since then; None: the run has not begun, or is over
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0.0))
    spans: list[tuple[int, int, float]] = field(default_factory=list)  # from, to, seconds: of undecided steps
    underway_s: float = 0.0  # of the steps after the last that was told
    step: int = 0  # the last that was told, or resumed from
    held: int = 0  # the furthest step that a proven checkpoint ever held

    @property
    def undecided_s(self) -> float:
        """Seconds in steps that no proven checkpoint holds yet."""
        return self.underway_s + sum(seconds for _, _, seconds in self.spans)

    @property
    def wall_s(self) -> float:
        return sum(self.totals.values()) + self.undecided_s

    @property
    def ratio(self) -> float | None:
        """Goodput from the run's begin; None before it."""
        return self.totals[STEPS] / self.wall_s if self.wall_s else None

    def figures(self) -> dict[str, Any]:
        """Returns what status and `stoker runs` show of it."""
        spent = {"wall_s": self.wall_s, "undecided_s": self.undecided_s}
        return {"ratio": self.ratio, **spent, "seconds": dict(self.totals)}

    def passed(self, now: float, bucket: str | None) -> None:
        """Counts the time since the last call for what it was spent on; from now on it is for `bucket`."""
        seconds = now - self.at
        if self.bucket == STEPS:
            self.underway_s += seconds
        elif self.bucket is not None:
            self.totals[self.bucket] += seconds
        self.at, self.bucket = now, bucket

    def told(self, step: int, waited_s: float) -> None:
        """Takes in the newest step made; `waited_s` are the seconds that it waited for its data."""
        made = step - self.step
        if made <= 0:
            return
        waited_s = min(self.underway_s, waited_s * made)  # those not told waited as long
        self.totals["data_wait"] += waited_s
        self.spans.append((self.step, step, self.underway_s - waited_s))
        self.step, self.underway_s = step, 0.0
        if len(self.spans) > MOST_SPANS:
            pairs = zip(self.spans[::2], self.spans[1::2], strict=False)
            rest = self.spans[len(self.spans) // 2 * 2 :]
            self.spans = [(one[0], two[1], one[2] + two[2]) for one, two in pairs] + rest

    def proven(self, step: int) -> None:
        """Takes in that a proven checkpoint holds the steps up to this one."""
        if not self.spans or step <= self.spans[0][0]:  # most calls
            self.held = max(self.held, step)
            return
        left = []
        for first, last, seconds in self.spans:
            good, again = (min(1.0, max(0.0, (to - first) / (last - first))) for to in (step, self.held))
            again = min(good, again)
            self.totals[STEPS] += seconds * (good - again)
            self.totals["redone"] += seconds * again
            if last > step:
                left.append((max(first, step), last, seconds * (1.0 - good)))
        self.spans, self.held = left, max(self.held, step)

    def settled(self, step: int) -> None:
        """Takes in that the next launch goes on from this proven step: later ones are lost."""
        self.proven(step)
        self.totals["redone"] += self.undecided_s
        self.spans, self.underway_s, self.step = [], 0.0, step


def read_account(body: Mapping[str, Any]) -> Goodput:
    """Returns the account from its fields (`vars`)."""
    spans: Sequence[Sequence[Any]] = body["spans"]
    totals = {name: float(body["totals"].get(name, 0.0)) for name in BUCKETS}
    rest = {name: body[name] for name in ("at", "bucket", "underway_s", "step", "held")}
    return Goodput(totals=totals, spans=[(one[0], one[1], one[2]) for one in spans], **rest)
