"""The end of a run, and the least position that it may go back to without an operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.checkpoints.retention import History, candidates, find_checkpoints
from stoker.config.schema import Train
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, Skip, left_after, linear
from stoker.plan.residency import low_water, reaching
from stoker.store.errors import DataError


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
