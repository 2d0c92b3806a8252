"""How long the rest of some work takes: from the pace of the last day, as a range.

The pace is measured in some dozen parts of the time at work. Pauses count: they will come again. The time
between a stop and a start does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median, quantiles

from stoker.config.units import format_duration

OVER_S = 86_400.0  # of the past that counts
LEAST_S = 60.0  # less says nothing about the pace
PARTS = 24
UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "min"))


@dataclass(frozen=True)
class Point:
    """How much was done at a time (Unix seconds); between two of different `session`s was a restart."""

    at: float
    done: float
    session: int | str = 0


@dataclass(frozen=True)
class Left:
    """The seconds that the rest takes, from `least_s` to `most_s`; None with the reason where not known."""

    least_s: float | None = None
    most_s: float | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.least_s is None or self.most_s is None:
            return f"not known: {self.why}"
        unit_s, unit = next((one for one in UNITS if self.most_s >= 2 * one[0]), UNITS[-1])
        least, most = (max(1, round(seconds / unit_s)) for seconds in (self.least_s, self.most_s))
        return f"in {least} to {most} {unit}" if least < most else f"in about {most} {unit}"


def unix(time: str) -> float:
    """Returns the Unix seconds of a time as records have it; raises ValueError for another text."""
    return datetime.fromisoformat(time).timestamp()


def time_left(
    points: Iterable[Point],
    rest: float,
    now: float,
    *,
    can_fall: bool = False,
    known_after_s: float = LEAST_S,
) -> Left:
    """Returns how long `rest` takes at the pace of the points of the last day, which are in order of time.

    A fall is a run that went back, and no work undone, unless it `can_fall`, as the use of a disk does.
    Measured for less than `known_after_s`, the pace is not known.
    """
    if rest <= 0:
        return Left(0.0, 0.0)
    spans = [
        (two.at - one.at, two.done - one.done)
        for one, two in pairwise(point for point in points if now - OVER_S <= point.at <= now)
        if one.session == two.session and two.at > one.at and (can_fall or two.done >= one.done)
    ]
    measured_s = sum(seconds for seconds, _ in spans)
    if measured_s < known_after_s:
        return Left(why=f"only {format_duration(measured_s)} of work were measured in the last day")
    paces = list(_paces(spans, measured_s / PARTS))
    usual = median(paces)
    mean = sum(done for _, done in spans) / measured_s
    if usual <= 0:
        return Left(why=f"for most of {format_duration(measured_s)} nothing was done")
    slow, _, fast = quantiles(paces, n=4) if len(paces) > 1 else (usual, usual, usual)
    return Left(rest / max(fast, usual), rest / (slow if slow > 0 else min(mean, usual)))


def _paces(spans: Iterable[tuple[float, float]], part_s: float) -> Iterator[float]:
    """Yields the pace of each part of the time, which is at least `part_s` seconds long."""
    seconds = done = 0.0
    for more_s, more in spans:
        seconds, done = seconds + more_s, done + more
        if seconds >= part_s:
            yield done / seconds
            seconds = done = 0.0
