"""The low-water mark: the least position the run may still go back to by itself."""

from __future__ import annotations

from pathlib import Path

from stoker.checkpoints.format import BODY, read_body
from stoker.checkpoints.select import History, candidates, find_checkpoints
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position
from stoker.plan.residency import low_water
from stoker.store.errors import DataError


def mark(
    checkpoints_dir: Path, history: History, plan: Plan, *, keep_last: int, resumed: Path | None, newest: int
) -> Position:
    """Over the last `keep_last` checkpoints of a history, those sealed after the `newest` proven step, which
    may yet be found bad, not counted but included, and the one `resumed` from. START when there is none, or
    one of them does not tell."""
    found = candidates(find_checkpoints(checkpoints_dir), history)
    later = sum(one.step > newest for one in found)
    paths = {one.path for one in found[: later + keep_last]}
    if resumed is not None and resumed.exists():
        paths.add(resumed)
    try:
        return low_water(plan, [_position(path) for path in paths])
    except (OSError, DataError):
        return START


def _position(path: Path) -> Position:
    return Position(*read_body((path / BODY).read_bytes()).position)
