"""Timelines: the histories of a run, of which a rollback begins a new one; timeline 0 has no line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stoker.plan.positions import Position, Skip
from stoker.store.errors import DataError
from stoker.store.log import ChainedLog, LogReading, read_log, restore_lines
from stoker.store.record import require_version

T = TypeVar("T")


@dataclass(frozen=True)
class Timeline:
    """A fork: the run gives up the steps of `parent` after `from_step`, and skips the ranges of `skip`."""

    number: int
    parent: int
    from_step: int
    skip: tuple[Skip, ...]
    reason: str
    request: str = ""  # the id of the operator's request, if any
    lost: str = ""  # the key of the shard set that the fork gives up, if any

    def body(self) -> dict[str, Any]:
        fields = {"request": self.request, "lost": self.lost}
        return {
            **{name: value for name, value in fields.items() if value},
            "v": 1,
            "timeline": self.number,
            "parent": self.parent,
            "from": self.from_step,
            "skip": [[first.as_list(), last.as_list()] for first, last in self.skip],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Timelines:
    """All forks of a run in their order, and the chain hash of each line."""

    forks: tuple[Timeline, ...] = ()
    hashes: tuple[str, ...] = ()

    @property
    def current(self) -> int:
        """The run's current timeline: the newest."""
        return self.forks[-1].number if self.forks else 0


def read_timelines(path: Path) -> Timelines:
    """Returns the timelines in a file (missing: only 0); raises DataError with the damaged line."""
    return parse_timelines(read_log(path), str(path))


def restore_timelines(path: Path, copy: Timelines) -> int:
    """Appends the forks that the log lacks and a copy has; returns how many. DataError where they differ."""
    ours = read_timelines(path).hashes
    with contextlib.closing(ChainedLog(path)) as log:
        return restore_lines(path, ours, copy.hashes, lambda n: log.append(copy.forks[n].body()))


def parse_timelines(reading: LogReading, path: str) -> Timelines:
    """Returns the timelines of a log's content; `path` names the log in errors, as in read_timelines."""
    if reading.damage:
        raise DataError(f"{path}: {reading.damage[0]}; put back the copy in the newest checkpoint")
    forks: list[Timeline] = []
    for index, body in enumerate(reading.entries):
        try:
            fork = _parse(body, f"{path}, entry {index},")
        except (DataError, ValueError) as problem:
            raise DataError(f"{path}: entry {index}: {problem}") from problem
        if fork.number != index + 1 or not 0 <= fork.parent < fork.number:
            raise DataError(
                f"{path}: entry {index}: timeline {fork.number} of parent {fork.parent} is out of order; "
                f"timeline {index + 1} of an earlier one is expected"
            )
        forks.append(fork)
    return Timelines(tuple(forks), tuple(reading.hashes))


def ancestry(timelines: Timelines, current: int | None = None) -> list[tuple[int, int | None]]:
    """Returns a timeline's history (default: the current), newest first: (timeline, last step that counts).

    None as last step: no fork ends the timeline. Raises DataError for an unknown timeline.
    """
    history: list[tuple[int, int | None]] = []
    upto: int | None = None
    for fork in _path(timelines, current):
        history.append((fork.number, upto))
        upto = fork.from_step if upto is None else min(upto, fork.from_step)
    return [*history, (0, upto)]


def committed(
    rows: Iterable[T], history: Sequence[tuple[int, int | None]], key: Callable[[T], tuple[int, int, bool]]
) -> list[T]:
    """Returns the rows of a training log in a history, by step; `key` gives (timeline, step, trained).

    Rollbacks can train a step on several timelines. A timeline can also have steps before its fork, where the
    fork's checkpoint was lost. The row of the newest timeline that trained the step counts.
    """
    mine: dict[int, list[tuple[int, bool, T]]] = {number: [] for number, _ in history}
    for row in rows:
        timeline, step, trained = key(row)
        if timeline in mine:
            mine[timeline].append((step, trained, row))
    found: list[tuple[int, bool, T]] = []
    before: int | None = None
    for number, upto in history:
        last = min((limit for limit in (upto, before) if limit is not None), default=None)
        kept = [one for one in mine[number] if last is None or one[0] <= last]
        found += kept
        before = min((step - 1 for step, trained, _ in kept if trained), default=last)
    return [row for _, _, row in sorted(found, key=lambda one: (one[0], not one[1]))]


def skips(timelines: Timelines, current: int | None = None) -> tuple[Skip, ...]:
    """Returns the ranges that a timeline (default: the current) and its ancestors skip."""
    return tuple(skip for fork in _path(timelines, current) for skip in fork.skip)


def _path(timelines: Timelines, current: int | None) -> list[Timeline]:
    """Returns the forks from a timeline (default: the current) back to timeline 0, which has none."""
    number = timelines.current if current is None else current
    if not 0 <= number <= len(timelines.forks):
        raise DataError(f"timeline {number} is not in timelines.jsonl, which ends at {timelines.current}")
    path: list[Timeline] = []
    while number:
        path.append(timelines.forks[number - 1])
        number = path[-1].parent
    return path


def _parse(body: Mapping[str, Any], where: str) -> Timeline:
    if "v" not in body:
        raise ValueError("it says no format version")
    require_version(body, where)
    numbers = [body.get(field) for field in ("timeline", "parent", "from")]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("timeline, parent and from are not all whole numbers")
    try:
        skip = tuple((Position.parse(first), Position.parse(last)) for first, last in body["skip"])
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError("skip is not a list of [position, position]") from problem
    words = {name: str(body.get(name, "")) for name in ("reason", "request", "lost")}
    return Timeline(body["timeline"], body["parent"], body["from"], skip, **words)
