"""The low-water mark: the least position the run may still go back to by itself."""

from __future__ import annotations

from pathlib import Path

from stoker.checkpoints.select import History, candidates, find_checkpoints
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position
from stoker.plan.residency import low_water
from stoker.store.errors import DataError


def mark(checkpoints_dir: Path, history: History, plan: Plan, *, keep_last: int, newest: int) -> Position:
    """Over the last `keep_last` checkpoints of a history; those sealed after the `newest` proven step may yet
    be found bad, and are taken besides. START when there is none, or one of them does not tell.

    The one a launch resumed from is the newest then; a milestone that stays for ever holds nothing for ever.
    """
    found = candidates(find_checkpoints(checkpoints_dir), history)
    later = sum(one.step > newest for one in found)
    bodies = [one.body for one in found[: later + keep_last]]
    known = [Position(*body.position) for body in bodies if body is not None]
    try:
        return low_water(plan, known) if len(known) == len(bodies) else START
    except DataError:
        return START
