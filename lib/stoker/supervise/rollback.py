"""Going back to an earlier checkpoint: the request, its check, and the rollback.

The steps after that checkpoint are given up; ranges that earlier rollbacks skip stay skipped. A rollback
writes one line first, then moves the checkpoints past the fork away; an interrupted one is finished later.
The caller holds the run's trainer.lock, or no process of the run is alive.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from stoker.checkpoints.format import TIMELINES_COPY
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import abandoned, candidates, find_checkpoints
from stoker.config.schema import Quarantine
from stoker.corpus.records.sources import Source
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, Skip, advance, left_after, linear
from stoker.plan.residency import reaching
from stoker.plan.timelines import (
    Timeline,
    Timelines,
    ancestry,
    read_timelines,
    restore_timelines,
    skips,
)
from stoker.store.errors import DataError, UsageError
from stoker.store.files import drop_first, make_dir, move_durably, unlink_durably
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.record import new_id
from stoker.store.requests import Request
from stoker.supervise.lost_sets import why_lost
from stoker.supervise.run.launch_record import Makers, read_launches

_KEY = re.compile(r"[0-9a-f]{16,64}")
_ARGUMENTS = {"rollback": ("to", "skip", "reason"), "skip_set": ("key", "reason")}
MOST_TOLD = 20  # possible steps named in a refusal


class RollbackRefused(UsageError):
    """A rollback that is not possible; the message gives the reason and the possible steps."""


Step = Annotated[int, Field(strict=True, ge=0)]


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RollbackRequest:
    """A request to go back to step `to` (0: the beginning) on the current timeline.

    `skip` holds pairs (from, to): the windows of the steps from < s <= to of the timeline left are passed
    over. The request is valid only while `timeline` is the current one. `request` is an id. With `lost`, the
    key of a shard set or at least its first 16 digits, `to` is the newest checkpoint's step, and the rest of
    the planned entries that name the set is passed over.
    """

    to: Step
    skip: tuple[tuple[Step, Step], ...] = ()
    reason: str = "operator"
    timeline: Step | None = None
    request: str = ""
    lost: str = ""


@dataclass(frozen=True)
class RollbackContext:
    """The run's state for a rollback. `steps` are those of checkpoints on the current history; `place` gives
    the position after a step of that history, None where it cannot be known."""

    timelines: Timelines
    plan: Plan
    steps: Collection[int]
    place: Callable[[int], Position | None]


def parse_request(request: Request, steps: Collection[int]) -> RollbackRequest:
    """Returns the rollback that a request asks for; RollbackRefused names the fault of a wrong request.

    `steps` are of checkpoints on the current history: giving up a set continues from the newest.
    """
    verb, known, condition = request.verb, _ARGUMENTS[request.verb], request.condition or {}
    if unknown := sorted({*request.args} - {*known} | {*condition} - {"timeline"}):
        raise RollbackRefused(f"{verb} has no {unknown[0]!r}; it has {', '.join(known)}, and if timeline")
    given = {name: value for name, value in request.args.items() if value is not None}
    asked = {**given, **condition, "request": request.id}
    if verb == "skip_set":
        key = str(asked.pop("key", None))
        if not _KEY.fullmatch(key):
            raise RollbackRefused(f"key={key!r} is no shard set's: name 16 to 64 of its hex digits")
        asked |= {"lost": key, "to": max(steps, default=0)}
        asked.setdefault("reason", f"shard set {key[:16]} is lost")
    asked["reason"] = str(asked.get("reason") or "operator")[:500]
    try:
        return RollbackRequest(**asked)
    except ValidationError as problem:
        error = problem.errors()[0]
        at, got = ".".join(map(str, error["loc"])), f", not {error['input']!r}"
        raise RollbackRefused(
            f"{verb}: {at}: {error['msg']}{'' if error['type'] == 'missing' else got}"
        ) from None


def decide(
    ask: RollbackRequest, run: RollbackContext, sources: Mapping[str, Source] | None = None
) -> Timeline:
    """Returns the timeline entry that makes the rollback; RollbackRefused where it is not possible.

    `sources` are those by set key, where the rollback gives up a set.
    """
    current = run.timelines.current
    if ask.timeline is not None and ask.timeline != current:
        raise RollbackRefused(
            f"the run is on timeline {current}, not on {ask.timeline}: it was rolled back meanwhile"
        )
    if ask.to != 0 and ask.to not in run.steps:
        raise RollbackRefused(f"step {ask.to} has no checkpoint on the run's history; {possible(run.steps)}")
    lost, skip = "", tuple(_range(first, last, ask.to, run) for first, last in ask.skip)
    if ask.lost:
        lost, skip = _rest_of_entries(ask, run)
        require_lost(lost, sources or {})
    return Timeline(current + 1, current, ask.to, skip, ask.reason, ask.request, lost)


def possible(steps: Collection[int]) -> str:
    """Returns the text of the possible steps: the newest of many."""
    told = sorted(steps, reverse=True)[:MOST_TOLD]
    return f"possible are {', '.join(map(str, [*told, 0]))}"


def already(ask: RollbackRequest, timelines: Timelines) -> Timeline | None:
    """Returns the rollback that this request already made, if its process died before it could answer."""
    return next((fork for fork in timelines.forks if ask.request and fork.request == ask.request), None)


def outcome_of(fork: Timeline, plan: Plan, moved: Sequence[str]) -> dict[str, Any]:
    """Returns the answer to the request of a rollback that was made."""
    return {
        "timeline": fork.number,
        "left": fork.parent,
        "from": fork.from_step,
        "skipped_windows": skipped_windows(plan, fork.skip),
        "moved": list(moved),
    }


def skipped_windows(plan: Plan, skip: Sequence[Skip]) -> int:
    """Returns the windows in ranges of the plan, each counted once."""
    return plan.windows - left_after(plan, START, skip)


def require_lost(key: str, sources: Mapping[str, Source]) -> None:
    """Raises RollbackRefused while the set exists or can come back: no data is given up needlessly."""
    if why_lost(key, sources) is None:
        source = sources[key]
        raise RollbackRefused(
            f"shard set {key[:16]} is not lost: {source.path} is {source.state}; the stage-shard loop "
            "brings it back, and the run waits for it"
        )


def _rest_of_entries(ask: RollbackRequest, run: RollbackContext) -> tuple[str, tuple[Skip, ...]]:
    """Returns the key of the set to give up, and the rest of the planned entries that name it.

    The set's tokens are spread over a whole entry, as the order is a permutation: hundreds of thousands of
    single windows. The entry's other sets are read again in the next epoch.
    """
    position = run.place(ask.to) or START
    entries = list(reaching(run.plan, position))
    named = (key for segment in entries for key, _ in segment.sets if key.startswith(ask.lost))
    lost = next(named, None)
    if lost is None:
        raise RollbackRefused(f"no planned entry from step {ask.to} on names a shard set {ask.lost[:16]}")
    return lost, tuple(
        (
            position if position.entry == segment.n else Position(segment.n, 0),
            Position(segment.n, segment.windows),
        )
        for segment in entries
        if any(key == lost for key, _ in segment.sets)
    )


def _range(first: int, last: int, to: int, run: RollbackContext) -> Skip:
    if not to <= first < last:
        raise RollbackRefused(
            f"skip {first}:{last} is no span of steps after step {to}: what is behind it stays trained on"
        )
    begin, end = run.place(first), run.place(last)
    if begin is None or end is None:
        raise RollbackRefused(
            f"skip {first}:{last}: which windows step {last if begin else first} ends at is not known: "
            "the plan does not reach that far"
        )
    linear(run.plan, end)  # raises DataError for a plan that lost its end
    return begin, end


@dataclass(frozen=True)
class Moved:
    """Names of the checkpoints moved to abandoned/, and of those dropped there for the budget."""

    names: tuple[str, ...]
    dropped: tuple[str, ...]


def roll_back(run: RunLayout, fork: Timeline, budget: Quarantine) -> Moved:
    """Makes a decided rollback durably.

    consumed.json is removed first: without it the run holds every set that its plan names, until its
    supervisor writes it again.
    """
    unlink_durably(run.consumed)
    with contextlib.closing(ChainedLog(run.timelines)) as log:
        log.append(fork.body())
    return finish(run, budget)


def finish(run: RunLayout, budget: Quarantine) -> Moved:
    """Moves every checkpoint past the last fork into abandoned/t<the timeline left>/, within the budget."""
    timelines = read_timelines(run.timelines)
    if not timelines.forks:
        return Moved((), ())
    place = run.abandoned / f"t{timelines.forks[-1].parent}"
    names = []
    past = abandoned(find_checkpoints(run.checkpoints), ancestry(timelines))
    for found in sorted(past, key=lambda one: one.step):
        make_dir(place)
        target = place / found.path.name
        if target.exists():  # a copy that another program made; Stoker must not overwrite it
            target = place / f"{found.path.name}-{new_id()}"
        move_durably(found.path, target)
        names.append(found.path.name)
    return Moved(tuple(names), _keep_to(budget, run.abandoned))


def restore_lost(run: RunLayout) -> int:
    """Restores lines that timelines.jsonl lost, from a whole checkpoint's copy; returns their number.

    Raises DataError when the two are different histories, or when a line is lost that no checkpoint has:
    training would continue on data that was given up.
    """
    restored = 0
    current = read_timelines(run.timelines).current
    later = [one for one in find_checkpoints(run.checkpoints) if (one.timeline or 0) > current]
    for found in sorted(later, key=lambda one: (-(one.timeline or 0), -one.step)):
        if prove_checkpoint(found.path, deep=False).verdict == "proven":
            restored = restore_timelines(run.timelines, read_timelines(found.path / TIMELINES_COPY))
            break  # its copy has every line up to its own timeline
    current = read_timelines(run.timelines).current
    known = {one.timeline: run.launches for one in read_launches(run.launches)[0]}
    known |= {int(left.name[1:]) + 1: left for left in _left(run.abandoned)}
    known |= {one.timeline or 0: one.path for one in later}
    if (latest := max(known, default=0)) > current:
        raise DataError(
            f"{run.timelines} ends at timeline {current}, but {known[latest]} is of timeline {latest}: the "
            "line of a rollback is lost, and no checkpoint here has a copy of it. Training would use data "
            "that was abandoned: put the file back, from a backup or from a checkpoint of the mirror"
        )
    return restored


def rollback_context(run: RunLayout, plan: Plan, global_batch: int) -> RollbackContext:
    """Returns the run's state for a rollback; `global_batch` is for steps of no recorded launch."""
    timelines = read_timelines(run.timelines)
    found = candidates(find_checkpoints(run.checkpoints), ancestry(timelines))
    sealed = {0: START, **{one.step: Position(*one.body.position) for one in found if one.body}}
    makers = Makers(read_launches(run.launches)[0], timelines)

    def place(step: int) -> Position | None:
        """Counts from the last checkpoint before, batch by batch; None where the plan is too short."""
        last = max(one for one in sealed if one <= step)
        position: Position | None = sealed[last]
        while position is not None and last < step:
            last += 1
            launch = makers.of(last)
            batch = launch.settings.get("global_batch") if launch else None
            count = batch if type(batch) is int else global_batch
            position = advance(plan, position, count, skips(timelines))
        return position

    return RollbackContext(timelines, plan, {*sealed} - {0}, place)


def _keep_to(budget: Quarantine, abandoned_dir: Path) -> tuple[str, ...]:
    """Drops the oldest checkpoints in abandoned/ until it is within the budget; returns their names.

    The newest stays at any size, unless the budget is zero.
    """
    places = [path for folder in _left(abandoned_dir) for path in sorted(folder.iterdir()) if path.is_dir()]
    dropped = drop_first(places, keep=budget.keep_checkpoints, keep_bytes=budget.keep_bytes)
    return tuple(f"{place.parent.name}/{place.name}" for place in dropped)


def _left(abandoned_dir: Path) -> list[Path]:
    """Returns the folders of the timelines that were left, in their order."""
    folders = [path for path in abandoned_dir.glob("t*") if path.name[1:].isdecimal()]
    return sorted(folders, key=lambda path: int(path.name[1:]))
