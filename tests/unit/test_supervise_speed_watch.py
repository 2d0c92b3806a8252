"""The speed watch: what is usual, what ten slow minutes are, and what is no slowness."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stoker.supervise.health.speed_watch import LEAST_STEPS, MOST_SIZES, Speed, SpeedWatch

USUAL = 1000.0


class Steps:
    """Steps of 2,000 tokens, two seconds each at the usual speed."""

    def __init__(self) -> None:
        self.watch, self.step, self.tokens, self.draw = SpeedWatch(), 0, 0, random.Random(1)

    def make(self, count: int, share: float = 1.0, *, live: bool = True, **changes: Any) -> Speed | None:
        """Makes steps of about this share of the usual speed; returns how it is then."""
        for _ in range(count):
            self.step, self.tokens = self.step + 1, self.tokens + changes.get("made", 2000)
            speed = USUAL * share * self.draw.uniform(0.95, 1.05)
            row = {"step": self.step, "tokens": self.tokens, "tokens_per_s": speed, "micro_batch": 8}
            self.watch.add({**row, "data_wait_s": 0.2, **changes}, is_live=live)
        return self.watch.now()


def slow(found: Speed | None) -> bool:
    return found is not None and found.is_slow


def test_ten_minutes_under_the_usual_speed_are_slow_until_it_is_well_again() -> None:
    run = Steps()
    assert run.make(1000) is not None and not slow(run.watch.now())
    assert not slow(run.make(150, 0.6)), "that was ten minutes less some"
    found = run.make(80, 0.6)
    assert found is not None and found.is_slow and not found.is_well
    assert found.usual == pytest.approx(USUAL, rel=0.02)
    assert found.tokens_per_s == pytest.approx(600, rel=0.02)
    assert found.data_wait_share == pytest.approx(0.06, rel=0.05)
    assert not slow(run.make(120)), "two minutes were as usual"
    assert not (run.watch.now() or found).is_well, "but not the ten"
    ended = run.make(300)
    assert ended is not None and ended.is_well


@pytest.mark.parametrize(("share", "is_slow"), [(0.66, True), (0.74, False), (0.1, True)])
def test_the_limit_is_seven_tenths(share: float, is_slow: bool) -> None:
    run = Steps()
    run.make(2000)
    assert slow(run.make(int(700 / 2 * share) + 5, share)) is is_slow


def test_a_short_standstill_is_no_slowness_however_long_it_looks() -> None:
    run = Steps()
    run.make(1000)
    assert not slow(run.make(1, 2 / 3600)), "an hour in one step: the machine was paused"
    assert not slow(run.make(400))
    assert not slow(run.make(10, 0.05)), "seven minutes, and as usual before"
    run.watch.interrupted()
    run.make(1, 2 / 3600)
    assert run.make(60, 0.6) is None, "three minutes besides"


def test_steps_that_take_minutes_and_steps_of_milliseconds_are_judged_alike() -> None:
    for made, steps in ((100, 10_000), (200_000, LEAST_STEPS + 5)):
        run = Steps()
        assert not slow(run.make(steps, made=made)) and run.watch.now() is not None
        assert slow(run.make(int(1000 * USUAL / made * 0.5) + 5, 0.5, made=made))
        assert len(run.watch._recent) < 1500


def test_other_sizes_have_a_median_of_their_own_which_is_remembered() -> None:
    run = Steps()
    run.make(1000)
    assert run.make(50, 0.5, micro_batch=4) is None, "nothing is usual yet"
    assert not slow(run.make(500, 0.5, micro_batch=4))
    assert not slow(run.make(1, 0.5, made=1000)), "a batch where lengths change"
    assert run.make(5) is None
    assert slow(run.make(250, 0.6))
    for size in range(MOST_SIZES + 5):
        run.make(2, micro_batch=100 + size)
    assert len(run.watch._classes) == MOST_SIZES


def test_what_is_usual_comes_from_earlier_launches_and_now_from_this_one() -> None:
    run = Steps()
    assert run.make(5000, live=False) is None
    assert run.make(100, 0.6) is None
    assert slow(run.make(150, 0.6))
    run.watch.interrupted()
    assert run.watch.now() is None and run.make(10, 0.6) is None


def test_rows_without_figures_and_steps_that_were_left_out_count_for_nothing() -> None:
    watch = SpeedWatch()
    for step in range(1, 2000):
        watch.add({"step": step, "loss": 1.0}, is_live=True)
    for step in range(2000, 6000, 10):
        watch.add({"step": step, "tokens": step, "tokens_per_s": 1.0}, is_live=True)
    for step, speed in enumerate((0.0, -1.0, None, float("inf"), "fast"), 6000):
        watch.add({"step": step, "tokens": step, "tokens_per_s": speed}, is_live=True)
    assert watch.now() is None and not watch._recent
