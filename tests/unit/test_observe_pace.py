"""How long the rest takes: pauses count, restarts do not."""

from __future__ import annotations

import pytest

from stoker.observe.pace import OVER_S, Left, Point, time_left

NOW = 1_000_000.0


def steady(
    seconds: int, pace: float, *, before: float = 0.0, begun: float = 0.0, session: int = 0
) -> list[Point]:
    """A point a minute up to `before` seconds ago."""
    times = range(0, seconds + 1, 60)
    return [Point(NOW - before - seconds + each, begun + each * pace, session) for each in times]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "not known: only 0 s of work were measured in the last day"),
        (steady(0, 1.0), "not known: only 0 s of work were measured in the last day"),
        (steady(3600, 0.0), "not known: for most of 1 h nothing was done"),
        (steady(3600, 1.0), "in about 28 hours"),
        # A day at half the pace before the last is out of sight.
        (steady(36_000, 0.5, before=OVER_S + 60) + steady(36_000, 1.0, begun=18_000), "in about 28 hours"),
        # A third of the time it paused.
        (
            [
                *steady(2400, 3.0, before=4800),
                *steady(2400, 0.0, before=2400, begun=7200),
                *steady(2400, 3.0, begun=7200),
            ],
            "in 9 to 14 hours",
        ),
        # It was stopped for half of the time.
        (steady(1800, 1.0, before=5400) + steady(1800, 1.0, begun=1800, session=1), "in about 28 hours"),
        # It went back to an earlier step.
        (steady(1800, 1.0, before=1860) + steady(1800, 1.0), "in about 28 hours"),
    ],
)
def test_the_pace_of_the_last_day_says_how_long_the_rest_takes(points: list[Point], said: str) -> None:
    assert str(time_left(points, 100_000, NOW)) == said


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (Left(0.0, 0.0), "in about 1 min"),
        (Left(60, 119), "in 1 to 2 min"),
        (Left(3000, 7100), "in 50 to 118 min"),
        (Left(250_000, 350_000), "in 3 to 4 days"),
        (Left(why="x"), "not known: x"),
    ],
)
def test_a_range_is_said_in_one_unit(left: Left, said: str) -> None:
    assert str(left) == said


def test_nothing_left_takes_no_time() -> None:
    assert time_left([], 0, NOW) == Left(0.0, 0.0)


def test_a_disk_that_is_filled_and_freed_again_does_not_fill() -> None:
    points = [Point(NOW - 3600 + 60 * each, 1e6 * (each % 10)) for each in range(61)]
    assert time_left(points, 1e6, NOW).least_s, "as work, which nobody undoes"
    freed = [Point(NOW - 3600 + 60 * each, 1e6 * (each % 2)) for each in range(61)]
    assert time_left(freed, 1e6, NOW, can_fall=True).least_s is None
    assert str(time_left(steady(3600, 1.0), 3600, NOW, can_fall=True)) == "in about 60 min"
