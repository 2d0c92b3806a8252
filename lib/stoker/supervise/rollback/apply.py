"""A rollback done: one line first, then the checkpoints past the fork moved out of the way; finished whenever
it was interrupted. Whoever does this holds the run's trainer.lock, or nothing of the run is alive.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.format import TIMELINES_COPY
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.quarantine import drop_first
from stoker.checkpoints.select import Found, abandoned, candidates, find_checkpoints
from stoker.config.schema import Quarantine
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, advance
from stoker.plan.timelines import (
    Timeline,
    Timelines,
    ancestry,
    read_timelines,
    restore_timelines,
    skips,
)
from stoker.store.errors import DataError
from stoker.store.files import make_dir, move_durably, unlink_durably
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.names import new_id
from stoker.supervise.rollback.decide import Standing
from stoker.supervise.run.launch_record import Makers, read_launches


@dataclass(frozen=True)
class Moved:
    """Names of the checkpoints that were moved to abandoned/, and of those dropped there for the budget."""

    names: tuple[str, ...]
    dropped: tuple[str, ...]


def roll_back(run: RunLayout, fork: Timeline, budget: Quarantine) -> Moved:
    """Make a decided rollback, durably. What consumed.json said of the run is taken back first: without it
    the run holds everything its plan names, until its supervisor knows better."""
    unlink_durably(run.consumed)
    with contextlib.closing(ChainedLog(run.timelines)) as log:
        log.append(fork.body())
    return finish(run, budget)


def finish(run: RunLayout, budget: Quarantine) -> Moved:
    """Move every checkpoint past the last fork into abandoned/t<the timeline left>/, within the budget."""
    timelines = read_timelines(run.timelines)
    if not timelines.forks:
        return Moved((), ())
    place = run.abandoned / f"t{timelines.forks[-1].parent}"
    names = []
    past = abandoned(find_checkpoints(run.checkpoints), ancestry(timelines))
    for found in sorted(past, key=lambda one: one.step):
        make_dir(place)
        target = place / found.path.name
        if target.exists():  # somebody's copy; it is nobody's to overwrite
            target = place / f"{found.path.name}-{new_id()}"
        move_durably(found.path, target)
        names.append(found.path.name)
    return Moved(tuple(names), _keep_to(budget, run.abandoned))


def restore_lost(run: RunLayout) -> int:
    """Bring back lines that timelines.jsonl has lost, from a whole checkpoint's copy; returns how many.

    Raises DataError when the two are different histories, or when it is known that a line is lost that no
    checkpoint has: going on would train on what was given up.
    """
    restored = 0
    for found in _of_later_timeline(run, read_timelines(run.timelines)):
        if prove_checkpoint(found.path, deep=False).verdict == "proven":
            restored = restore_timelines(run.timelines, read_timelines(found.path / TIMELINES_COPY))
            break  # it has every line up to its own
    _refuse_lost(run, read_timelines(run.timelines))
    return restored


def standing(run: RunLayout, plan: Plan, global_batch: int) -> Standing:
    """The run as a rollback finds it; `global_batch` is configured now, for steps no launch is known of."""
    timelines = read_timelines(run.timelines)
    found = candidates(find_checkpoints(run.checkpoints), ancestry(timelines))
    sealed = {0: START, **{one.step: Position(*one.body.position) for one in found if one.body}}
    makers = Makers(read_launches(run.launches)[0], timelines)

    def place(step: int) -> Position | None:
        """Counted from the last checkpoint before, batch by batch; None where the plan is too short."""
        last = max(one for one in sealed if one <= step)
        position: Position | None = sealed[last]
        while position is not None and last < step:
            last += 1
            launch = makers.of(last)
            batch = launch.settings.get("global_batch") if launch else None
            count = batch if type(batch) is int else global_batch
            position = advance(plan, position, count, skips(timelines))
        return position

    return Standing(timelines, plan, {*sealed} - {0}, place)


def _of_later_timeline(run: RunLayout, timelines: Timelines) -> list[Found]:
    """Checkpoints of a timeline that timelines.jsonl does not have, the best witness first."""
    found = find_checkpoints(run.checkpoints)
    later = [one for one in found if one.timeline is not None and one.timeline > timelines.current]
    return sorted(later, key=lambda one: (-(one.timeline or 0), -one.step))


def _refuse_lost(run: RunLayout, timelines: Timelines) -> None:
    launches, _ = read_launches(run.launches)
    told = {one.timeline: run.launches for one in launches}
    told |= {left + 1: run.abandoned / f"t{left}" for left in _left(run.abandoned)}
    told |= {one.timeline or 0: one.path for one in _of_later_timeline(run, timelines)}
    latest = max(told, default=0)
    if latest > timelines.current:
        raise DataError(
            f"{run.timelines} ends at timeline {timelines.current}, but {told[latest]} knows of timeline "
            f"{latest}: a rollback's line is lost, and no checkpoint here has a copy of it. Going on would "
            "train on what was given up: put the file back, from a backup or from a checkpoint of the mirror"
        )


def _left(abandoned_dir: Path) -> list[int]:
    return [int(path.name[1:]) for path in abandoned_dir.glob("t*") if path.name[1:].isdecimal()]


def _keep_to(budget: Quarantine, abandoned_dir: Path) -> tuple[str, ...]:
    """Drop the oldest of what lies in abandoned/ until it keeps to the budget; the newest stays, whatever
    its size, unless nothing is to be kept at all."""
    lefts = sorted(_left(abandoned_dir))
    places = [
        path for left in lefts for path in sorted((abandoned_dir / f"t{left}").iterdir()) if path.is_dir()
    ]
    dropped = drop_first(places, keep=budget.keep_checkpoints, keep_bytes=budget.keep_bytes)
    return tuple(f"{place.parent.name}/{place.name}" for place in dropped)
