"""Going back to an earlier checkpoint: what is asked, whether it can be, and the line that says so.

The steps after the one gone back to are given up; what the rollbacks before it passed over stays passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.corpus.records.sources import Source
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, Skip, left_after, linear
from stoker.plan.residency import reaching
from stoker.plan.timelines import Timeline, Timelines
from stoker.store.errors import DataError, UsageError

_KEY = re.compile(r"[0-9a-f]{16,64}")
MOST_TOLD = 20  # possible steps named in a refusal


class RollbackRefused(UsageError):
    """This rollback cannot be; the message says why, and which could."""


@dataclass(frozen=True)
class Ask:
    """Go back to step `to` (0: the beginning) and pass over the windows of the steps from < s <= to of each
    pair in `skip`, steps of the timeline left; only if `timeline` is the current one. `request` is an id.

    With `lost`, the key of a shard set or its first 16 digits or more, `to` is the newest checkpoint's step
    and what is passed over is the rest of the planned entries that name the set.
    """

    to: int
    skip: tuple[tuple[int, int], ...] = ()
    reason: str = "operator"
    timeline: int | None = None
    request: str = ""
    lost: str = ""


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
    timeline = _timeline("a rollback", args, ("to", "skip", "reason"), condition or {})
    to, spans = args.get("to"), args.get("skip") or []
    if not _is_step(to):
        raise RollbackRefused(f"to={to!r} is no step; name the checkpoint to go back to, or 0")
    if not isinstance(spans, list | tuple) or not all(
        isinstance(span, list | tuple) and len(span) == 2 and all(map(_is_step, span)) for span in spans
    ):
        raise RollbackRefused(f"skip={spans!r} is not a list of [from step, to step]")
    reason = str(args.get("reason") or "operator")[:500]
    return Ask(int(to or 0), tuple((span[0], span[1]) for span in spans), reason, timeline, request)


def parse_skip_set(
    args: Mapping[str, Any], condition: Mapping[str, Any] | None, steps: Collection[int], request: str = ""
) -> Ask:
    """A request to give up a lost shard set; `steps` are those of the checkpoints on the current history."""
    timeline = _timeline("skip_set", args, ("key", "reason"), condition or {})
    key = args.get("key")
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise RollbackRefused(f"key={key!r} is no shard set's: name 16 to 64 of its hex digits")
    reason = str(args.get("reason") or f"shard set {key[:16]} is lost")[:500]
    return Ask(max(steps, default=0), (), reason, timeline, request, key)


def _timeline(
    verb: str, args: Mapping[str, Any], known: Sequence[str], condition: Mapping[str, Any]
) -> int | None:
    """The timeline that a request is for; RollbackRefused where it has a word that is not known."""
    if unknown := sorted({*args} - {*known} | {*condition} - {"timeline"}):
        raise RollbackRefused(f"{verb} has no {unknown[0]!r}; it has {', '.join(known)}, and if timeline")
    timeline = condition.get("timeline")
    if timeline is not None and not _is_step(timeline):
        raise RollbackRefused(f"timeline={timeline!r} is no timeline")
    return timeline


def lost_key(ask: Ask, run: Standing) -> str:
    """The whole key of the set that is to be given up; RollbackRefused when nothing planned reads it."""
    position = run.place(ask.to) or START
    for segment in reaching(run.plan, position):
        for key, _ in segment.sets:
            if key.startswith(ask.lost):
                return key
    raise RollbackRefused(f"no planned entry from step {ask.to} on names a shard set {ask.lost[:16]}")


def decide(ask: Ask, run: Standing) -> Timeline:
    """The line that makes the rollback; RollbackRefused where it cannot be."""
    current = run.timelines.current
    if ask.timeline is not None and ask.timeline != current:
        raise RollbackRefused(
            f"the run is on timeline {current}, not on {ask.timeline}: somebody has rolled back meanwhile"
        )
    if ask.to != 0 and ask.to not in run.steps:
        raise RollbackRefused(f"step {ask.to} has no checkpoint on the run's history; {possible(run.steps)}")
    skip = tuple(_range(first, last, ask.to, run) for first, last in ask.skip)
    lost = lost_key(ask, run) if ask.lost else ""
    if lost:
        skip = _rest_of_entries(lost, run.plan, run.place(ask.to) or START)
    return Timeline(current + 1, current, ask.to, skip, ask.reason, ask.request, lost)


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
    return plan.windows - left_after(plan, START, skip)


def by_key(sources: Iterable[Source], key_of: Callable[[str], str]) -> dict[str, Source]:
    """The sources by the key of the set that their content gives, one that tells the most for each."""
    known: dict[str, Source] = {}
    for source in sources:
        if source.sha256 not in known or source.state != "duplicate":
            known[source.sha256] = source
    return {key_of(sha256): source for sha256, source in known.items()}


def require_lost(key: str, sources: Mapping[str, Source]) -> None:
    """RollbackRefused while the set is there, or can come back: nothing is given up that need not be."""
    if why_lost(key, sources) is None:
        source = sources[key]
        raise RollbackRefused(
            f"shard set {key[:16]} is not lost: {source.path} is {source.state}; the stage-shard loop "
            "brings it back, and the run waits for it"
        )


def why_lost(key: str, sources: Mapping[str, Source]) -> str | None:
    """Why a set cannot come back, in words; None where it can, or is there."""
    source = sources.get(key)
    if source is None:
        return "its source has no record any more"
    if source.state != "quarantined":
        return None
    return f"{source.path} is quarantined" + (f" ({source.reason})" if source.reason else "")


def _rest_of_entries(key: str, plan: Plan, position: Position) -> tuple[Skip, ...]:
    """What is left, from a position on, of the planned entries that name the lost set.

    Its tokens are in windows all over an entry, as the order is a permutation: hundreds of thousands of
    single windows. The entry's other sets are read again in the next epoch.
    """
    return tuple(
        (
            position if position.entry == segment.n else Position(segment.n, 0),
            Position(segment.n, segment.windows),
        )
        for segment in reaching(plan, position)
        if any(named == key for named, _ in segment.sets)
    )


def _range(first: int, last: int, to: int, run: Standing) -> Skip:
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
    try:
        if linear(run.plan, begin) >= linear(run.plan, end):
            raise RollbackRefused(f"skip {first}:{last}: there are no windows between the two steps")
    except DataError as problem:
        raise RollbackRefused(f"skip {first}:{last}: {problem}") from problem
    return begin, end


def _is_step(value: object) -> bool:
    return type(value) is int and value >= 0
