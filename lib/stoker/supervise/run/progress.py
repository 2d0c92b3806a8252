"""How a run gets on: its end, the least position it may go back to, its speed, and its wait for data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from stoker.checkpoints.retention import History, candidates, find_checkpoints
from stoker.config.schema_train import Train
from stoker.observe.progress import Rate
from stoker.plan.growth import ENOUGH
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, Skip, left_after, linear
from stoker.plan.residency import low_water, reaching
from stoker.store.errors import DataError
from stoker.store.record import utc_now


def finished_at(
    step: int, position: Position, plan: Plan, *, steps: int, global_batch: int, skips: Sequence[Skip] = ()
) -> str | None:
    """Returns why a run at this position is over, "steps" or "data_exhausted"; None while it continues."""
    if step >= steps:
        return "steps"
    if plan.ended and left_after(plan, position, skips) < global_batch:
        return "data_exhausted"
    return None


def last_step(
    train: Train, plan: Plan, *, step: int, position: Position, tokens: int, skips: Sequence[Skip] = ()
) -> int:
    """Returns the run's last step: `train.steps`, or the whole batches that `train.tokens` allows.

    Counts from the given checkpoint's tokens, so that the global batch and seq_len may have changed before:
    planned windows have the seq_len of their entry, windows still to be planned the configured one.
    """
    if train.tokens is None:
        return train.horizon
    left = train.tokens - tokens
    windows = 0
    for entry in reaching(plan, position):
        first, last = max(linear(plan, position), plan.starts[entry.n]), plan.starts[entry.n + 1]
        inside = _open(plan, entry.n, first, skips) - _open(plan, entry.n, last, skips)
        took = min(inside, max(0, left) // entry.seq_len)
        windows += took
        left -= inside * entry.seq_len
        if took < inside:
            return max(1, step + windows // train.global_batch)
    windows += max(0, left) // train.seq_len
    return max(1, step + windows // train.global_batch)


def _open(plan: Plan, entry: int, windows: int, skips: Sequence[Skip]) -> int:
    """Returns the windows the plan gives after so many, a point inside that entry."""
    return left_after(plan, Position(entry, windows - plan.starts[entry]), skips)


def mark(checkpoints_dir: Path, history: History, plan: Plan, *, keep_last: int, newest: int) -> Position:
    """Returns the low-water mark of the last `keep_last` checkpoints of a history.

    Checkpoints sealed after the `newest` proven step are included besides, since their proofs may fail. START
    when the history has no checkpoint, or the body of one is unreadable. The checkpoint a launch resumed from
    is the newest at first; a milestone kept for good does not hold the mark back.
    """
    found = candidates(find_checkpoints(checkpoints_dir), history)
    later = sum(one.step > newest for one in found)
    bodies = [one.body for one in found[: later + keep_last]]
    known = [Position(*body.position) for body in bodies if body is not None]
    try:
        return low_water(plan, known) if len(known) == len(bodies) else START
    except DataError:
        return START


SPAN_S = 600.0  # covers evaluations and checkpoints; a change of speed still shows within minutes
LEAST_S = 60.0  # shorter spans are distorted by a single evaluation or slow step
SOON_S = 10.0  # for a rough first measure soon


class WindowRate:
    """Windows per second over the last ten minutes of training, once it has `least_s` seconds; `known` is the
    rate measured before a restart."""

    def __init__(self, known: float | None = None, *, least_s: float = LEAST_S) -> None:
        self._least_s = least_s
        self.windows_per_s = known
        self.interrupted()

    def sampled(self, windows: int, now: float) -> None:
        """Records that the trainer has passed so many windows of the plan, at `now` in monotonic seconds."""
        self._rate.note(windows, now)
        self.windows_per_s = self._rate.per_second or self.windows_per_s

    def interrupted(self) -> None:
        """Restarts the measure after the trainer ended or waited: that time is not training time."""
        self._rate = Rate(SPAN_S, self._least_s)


_PREFIX = "waiting for data: "


def waiting_words(why: str) -> str:
    """Returns the status text for the plan's reason for having no more entries."""
    if why in ("", ENOUGH):
        why = "shard sets to be proven"
    return _PREFIX + why.removeprefix("waiting for ")


class DataWait:
    """The present wait; `what` and `since` (UTC) are empty while the run does not wait."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self.what = self.since = ""
        self._began, self._due = 0.0, math.inf

    def note(self, doing: str, now: float) -> bool:
        """Records the reason of a wait, "" while the run continues; True once per wait, after hold_s.

        `now` is monotonic seconds.
        """
        if doing and not self.what:
            self.since, self._began, self._due = utc_now(), now, now + self._hold_s
        elif not doing:
            self.since, self._due = "", math.inf
        self.what = doing.removeprefix(_PREFIX)
        if now < self._due:
            return False
        self._due = math.inf
        return True

    def lasted_s(self, now: float) -> float:
        """Returns how long the wait has lasted."""
        return now - self._began if self.what else 0.0
