"""Launches over a part of the plan, where the hot disk does not hold all that is planned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.plan.consumption import consumed_body, read_holdings
from stoker.plan.growth import AHEAD_BATCHES
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position
from stoker.plan.residency import reach_from
from stoker.store.layout import StateLayout
from stoker.store.record import write_record
from stokerd.supervision import data
from stokerd.supervision.data import STALL_S, LaunchWindow
from support.plan_data import fake_set, plan_of, segment

BATCH = 2
WINDOWS = AHEAD_BATCHES * BATCH + 1
PLAN = plan_of(*(segment(n, WINDOWS, sets=[fake_set(str(n))]) for n in range(3)))


class Hot:
    """A planner whose sets are on hot by their segments' numbers; and a clock."""

    def __init__(self) -> None:
        self.plan = PLAN
        self.there: set[int] = set()
        self.now = 100.0
        self.told: list[str] = []

    def needed(self, position: Position, skips: Any) -> list[int]:
        return [one.n for one in self.plan.segments]

    def cold(self, needed: list[int]) -> list[int]:
        return [n for n in needed if n not in self.there]

    def reach(self, position: Position, skips: Any, least: int) -> Position | None:
        return reach_from(self.plan, position, lambda one: one.n in self.there, least_windows=least)


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> Hot:
    made = Hot()
    monkeypatch.setattr(data.time, "monotonic", lambda: made.now)
    return made


def over(hot: Hot, reach: Position | None = None) -> LaunchWindow:
    events = SimpleNamespace(record=lambda word, *_, **__: hot.told.append(word))
    train = SimpleNamespace(global_batch=BATCH)
    pipeline: Any = SimpleNamespace(train=train)
    return LaunchWindow(pipeline, events, hot, reach)  # type: ignore[arg-type]


def test_a_launch_waits_for_all_while_sets_come_back_and_goes_in_parts_once_none_does(hot: Hot) -> None:
    one = over(hot)
    one.look(START, ())
    hot.now += STALL_S - 1
    hot.there = {0}
    one.look(START, ())  # one came back
    hot.now += STALL_S - 1
    one.look(START, ())
    assert (one.reach, one.until(7, START, ()), hot.told) == (None, None, [])
    hot.now += 1
    one.look(START, ())
    assert one.reach == Position(1, 0)
    assert one.until(7, START, ()) == 7 + WINDOWS // BATCH
    assert hot.told == ["plan_in_parts"]
    hot.there = {0, 1}
    one.look(START, ())
    assert one.reach == Position(2, 0), "as far as hot goes, at once"
    hot.there = {0, 1, 2}
    one.look(START, ())
    assert one.reach is None
    assert hot.told == ["plan_in_parts"]


def test_where_not_even_a_few_batches_fit_a_launch_makes_one(hot: Hot) -> None:
    small = plan_of(*(segment(n, BATCH, sets=[fake_set(str(n))]) for n in range(AHEAD_BATCHES + 2)))
    hot.plan = small
    one = over(hot)
    for waited, reach in ((0.0, None), (STALL_S, Position(AHEAD_BATCHES, 0)), (STALL_S, Position(1, 0))):
        hot.now += waited
        one.look(START, ())
        assert one.reach == reach


def test_a_supervisor_that_starts_anew_goes_on_in_parts(hot: Hot, tmp_path: Any) -> None:
    layout = StateLayout(tmp_path)
    layout.create()
    layout.run("main").create()
    body = {"step": 0, "position": [0, 0], "tokens": 0}
    record = consumed_body("main", None, body, Plan((), ""), reach=Position(1, 0))
    write_record(layout.run("main").consumed, record)
    assert read_holdings(layout)[0].reach == Position(1, 0)
    one = over(hot, Position(1, 0))
    one.look(START, ())
    assert one.reach == Position(1, 0)
