"""Going back to an earlier checkpoint: what is asked, whether it can be, and the line that says so.

The steps after the one gone back to are given up; what the rollbacks before it passed over stays passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.plan.log import Plan
from stoker.plan.positions import Position, Skip, linear
from stoker.plan.timelines import Timeline, Timelines
from stoker.store.errors import DataError, UsageError

MOST_TOLD = 20  # possible steps named in a refusal


class RollbackRefused(UsageError):
    """This rollback cannot be; the message says why, and which could."""


@dataclass(frozen=True)
class Ask:
    """Go back to step `to` (0: the beginning) and pass over the windows of the steps from < s <= to of each
    pair in `skip`, steps of the timeline left; only if `timeline` is the current one. `request` is an id."""

    to: int
    skip: tuple[tuple[int, int], ...] = ()
    reason: str = "operator"
    timeline: int | None = None
    request: str = ""


@dataclass(frozen=True)
class Standing:
    """The run as a rollback finds it. `steps` are those of checkpoints on the current history; `place` gives
    the position after a step of that history, None where that cannot be known."""

    timelines: Timelines
    plan: Plan
    steps: Collection[int]
    place: Callable[[int], Position | None]


def parse_ask(args: Mapping[str, Any], condition: Mapping[str, Any] | None, request: str = "") -> Ask:
    """A request's words as what is asked; RollbackRefused says what is wrong with them."""
    to, spans, wanted = args.get("to"), args.get("skip") or [], (condition or {}).get("timeline")
    if unknown := sorted({*args} - {"to", "skip", "reason"} | {*(condition or {})} - {"timeline"}):
        raise RollbackRefused(f"a rollback has no {unknown[0]!r}; it has to, skip, reason, and if timeline")
    if not _is_step(to):
        raise RollbackRefused(f"to={to!r} is no step; name the checkpoint to go back to, or 0")
    if wanted is not None and not _is_step(wanted):
        raise RollbackRefused(f"timeline={wanted!r} is no timeline")
    if not isinstance(spans, list | tuple) or not all(
        isinstance(span, list | tuple) and len(span) == 2 and all(map(_is_step, span)) for span in spans
    ):
        raise RollbackRefused(f"skip={spans!r} is not a list of [from step, to step]")
    reason = str(args.get("reason") or "operator")[:500]
    return Ask(int(to or 0), tuple((span[0], span[1]) for span in spans), reason, wanted, request)


def decide(ask: Ask, run: Standing) -> Timeline:
    """The line that makes the rollback; RollbackRefused where it cannot be."""
    current = run.timelines.current
    if ask.timeline is not None and ask.timeline != current:
        raise RollbackRefused(
            f"the run is on timeline {current}, not on {ask.timeline}: somebody has rolled back meanwhile"
        )
    if ask.to != 0 and ask.to not in run.steps:
        raise RollbackRefused(f"step {ask.to} has no checkpoint on the run's history; {possible(run.steps)}")
    return Timeline(
        number=current + 1,
        parent=current,
        from_step=ask.to,
        skip=tuple(_range(first, last, ask.to, run) for first, last in ask.skip),
        reason=ask.reason,
        request=ask.request,
    )


def possible(steps: Collection[int]) -> str:
    """The steps one can go back to, in words: the newest of many."""
    told = sorted(steps, reverse=True)[:MOST_TOLD]
    return f"possible are {', '.join(map(str, [*told, 0]))}"


def already(ask: Ask, timelines: Timelines) -> Timeline | None:
    """The rollback that this very request has made already, before whoever made it could say so."""
    return next((fork for fork in timelines.forks if ask.request and fork.request == ask.request), None)


def outcome_of(fork: Timeline, plan: Plan, moved: Sequence[str]) -> dict[str, Any]:
    """What whoever asked is told of a rollback that was made."""
    return {
        "timeline": fork.number,
        "left": fork.parent,
        "from": fork.from_step,
        "skipped_windows": skipped_windows(plan, fork.skip),
        "moved": list(moved),
    }


def skipped_windows(plan: Plan, skip: Sequence[Skip]) -> int:
    """Windows in ranges of the plan, each counted once."""
    places = sorted((linear(plan, first), linear(plan, last)) for first, last in skip)
    reached, count = 0, 0
    for first, last in places:
        count += max(0, last - max(first, reached))
        reached = max(reached, last)
    return count


def _range(first: int, last: int, to: int, run: Standing) -> Skip:
    if not to <= first < last:
        raise RollbackRefused(
            f"skip {first}:{last} is no span of steps after step {to}: what is behind it stays trained on"
        )
    begin, end = run.place(first), run.place(last)
    if begin is None or end is None:
        raise RollbackRefused(
            f"skip {first}:{last}: which windows step {last if begin else first} ends at is not known: "
            "the training log has no row of it and the plan does not reach that far"
        )
    try:
        if linear(run.plan, begin) >= linear(run.plan, end):
            raise RollbackRefused(f"skip {first}:{last}: there are no windows between the two steps")
    except DataError as problem:
        raise RollbackRefused(f"skip {first}:{last}: {problem}") from problem
    return begin, end


def _is_step(value: object) -> bool:
    return type(value) is int and value >= 0
