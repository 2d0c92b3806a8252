"""What follows the end of a launch: the policy's table, and what its decisions make of the run's record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.config.schema import Supervise
from stoker.plan.timelines import Timeline, Timelines
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.exits import Exit, ExitClass
from stoker.supervise.policy import (
    BACK,
    SPIKE,
    Case,
    Facts,
    Fork,
    Response,
    Tried,
    answer_spike,
    remedy,
    respond,
    skipped,
)

POLICY = Supervise(no_progress_launches=5, skips_in_1000_steps=2)
TRAINS = Evidence(phase="train", step=35, micro_batch=8, headroom_bytes=100, headroom_after_bytes=95)
LOADS = Evidence(phase="load", step=30)
NAME, OTHER = "step-000000030", "step-000000020"


NOTHING = Tried()


def case(kind: str, seen: Evidence = TRAINS, tried: Tried = NOTHING, **changes: Any) -> Case:
    """A launch that began at step 30 and sealed nothing; the run's checkpoints are of steps 20 and 30."""
    facts = Facts(
        changes.pop("timeline", 0), tried, changes.pop("skipped", ()), changes.pop("steps", (30, 20))
    )
    usual = Case(Exit(ExitClass(kind), "why"), seen, facts, NAME, 30, 30, fruitless=1)
    return replace(usual, **changes)


WAITED, MADE_AGAIN = Tried(waited=True), Tried(again=(0, 35))
ONCE, AFTER_ONE = Tried(unloaded=NAME), Tried(unloaded=NAME, suspects=1)


@pytest.mark.parametrize(
    ("ended", "response"),
    [
        # Memory.
        (case("host_memory"), Response(micro_batch=4)),
        (case("gpu_memory"), Response(micro_batch=4)),
        (case("host_memory", replace(TRAINS, headroom_after_bytes=89)), Response(WAITED, waits=True)),
        (case("gpu_memory", replace(TRAINS, gpu_others_share=0.06)), Response(WAITED, waits=True)),
        (case("gpu_memory", replace(TRAINS, gpu_others_share=0.05)), Response(micro_batch=4)),
        (case("host_memory", replace(TRAINS, headroom_after_bytes=9), WAITED),
         Response(WAITED, micro_batch=4)),
        (case("host_memory", replace(TRAINS, micro_batch=3)), Response(micro_batch=1)),
        (case("host_memory", replace(TRAINS, micro_batch=1)),
         Response(halt="memory ran out at a micro-batch of one window (why)")),
        (case("host_memory", replace(TRAINS, micro_batch=None)), Response()),
        # Steps that are not finite.
        (case("non_finite"), Response(MADE_AGAIN)),
        (case("non_finite", tried=Tried(again=(0, 34))), Response(MADE_AGAIN)),
        (case("non_finite", tried=Tried(again=(1, 35))), Response(MADE_AGAIN)),
        (case("non_finite", tried=Tried(again=(1, 35)), timeline=1),
         Response(Tried(again=(1, 35)),
                  fork=Fork(30, ((34, 35),), "non_finite: step 35 was not finite, twice"))),
        (case("non_finite", tried=MADE_AGAIN, newest_step=34),
         Response(MADE_AGAIN, fork=Fork(34, ((34, 35),), "non_finite: step 35 was not finite, twice"))),
        (case("non_finite", tried=MADE_AGAIN, skipped=(10,)),
         Response(MADE_AGAIN, fork=Fork(30, ((34, 35),), "non_finite: step 35 was not finite, twice"))),
        (case("non_finite", tried=MADE_AGAIN, newest_step=35), Response(MADE_AGAIN)),
        (case("non_finite", tried=MADE_AGAIN, skipped=(22, 10)),
         Response(MADE_AGAIN, halt="3 steps of the last 1,000 were not finite, the last one step 35")),
        *((case("non_finite", tried=MADE_AGAIN, skipped=(33, 22), steps=steps),
           Response(MADE_AGAIN, halt="3 steps of the last 1,000 were not finite, the last one step 35",
                    fork=Fork(to, (), f"{BACK}: 3 steps of the last 1,000 were not finite")))
          for steps, to in (((30, 22, 20), 20), ((30, 22), 22))),
        (case("non_finite", replace(TRAINS, step=1035), Tried(again=(0, 1035)), skipped=(36, 35, 2000)),
         Response(Tried(again=(0, 1035)),
                  fork=Fork(30, ((1034, 1035),), "non_finite: step 1035 was not finite, twice"))),
        # A checkpoint that cannot be loaded.
        (case("crashed", LOADS), Response(ONCE)),
        (case("bad_data", LOADS), Response(ONCE)),
        (case("crashed", LOADS, ONCE), Response(replace(ONCE, suspects=1), suspect=NAME)),
        (case("crashed", LOADS, Tried(unloaded=OTHER)), Response(ONCE)),
        (case("crashed", TRAINS, ONCE), Response()),
        (case("crashed", replace(LOADS, phase="compile"), ONCE), Response()),
        (case("crashed", replace(LOADS, step=31), ONCE), Response()),
        (case("crashed", LOADS, ONCE, newest_step=31), Response()),
        (case("killed", LOADS, ONCE), Response(ONCE)),
        (case("crashed", LOADS, ONCE, steps=(30,)), Response(ONCE)),
        (case("crashed", LOADS, ONCE, resume="", resume_step=0), Response()),
        (case("bad_data", LOADS, AFTER_ONE),
         Response(ONCE, puts_back=True,
                  halt="no checkpoint can be loaded, so they are not the cause; bad_data (why)")),
        # Progress and the breaker.
        (case("killed", tried=Tried(True, (0, 9), NAME, 1), newest_step=31), Response(Tried(again=(0, 9)))),
        (case("killed", fruitless=4), Response()),
        (case("killed", fruitless=5, newest_step=31), Response()),
        (case("host_memory", fruitless=5),
         Response(halt="5 launches in a row left no new proven checkpoint; "
                  "the last one: host_memory (why)")),
        *((case(kind), Response()) for kind in ("finished_short", "device_lost", "storage", "hung")),
    ],
)  # fmt: skip
def test_what_follows_an_end(ended: Case, response: Response) -> None:
    assert respond(ended, POLICY) == response


def test_skipped_windows_count_since_the_run_last_went_back_and_only_those_of_the_policy() -> None:
    def fork(number: int, from_step: int, reason: str, parent: int | None = None) -> Timeline:
        return Timeline(number, number - 1 if parent is None else parent, from_step, (), reason)

    forks = [
        fork(1, 5, "non_finite: step 6"),
        fork(2, 9, "operator"),
        fork(3, 20, "non_finite: step 21"),
        fork(4, 40, "non_finite: step 41"),
        fork(5, 30, "operator", parent=3),
    ]
    assert skipped(Timelines()) == ()
    assert skipped(Timelines(tuple(forks))) == (20, 5), "what was left does not count"
    back = [*forks, fork(6, 3, f"{BACK}: 4 steps"), fork(7, 8, "non_finite: step 9")]
    assert skipped(Timelines(tuple(back))) == (8,)


def test_spikes_are_counted_apart_from_steps_that_were_not_finite() -> None:
    forks = (
        Timeline(1, 0, 5, (), "non_finite: step 6"),
        Timeline(2, 1, 9, (), "loss_spike: from step 10 to 12"),
    )
    assert skipped(Timelines(forks)) == (5,) and skipped(Timelines(forks), SPIKE) == (9,)


@pytest.mark.parametrize(
    ("steps", "spikes", "answer"),
    [
        ((2000, 2034, 2040), (), Fork(2034, ((2034, 2037),), "loss_spike: from step 2035 to 2037")),
        ((2000, 2040), (), Fork(2000, ((2034, 2037),), "loss_spike: from step 2035 to 2037")),
        ((2000,), (2000, 1035), Fork(2000, ((2034, 2037),), "loss_spike: from step 2035 to 2037")),
        ((2000,), (2000, 1036), "2 spikes of the last 1,000 steps were skipped already"),
        ((2035, 2040), (), "no checkpoint is left from before it"),
        ((), (), "no checkpoint is left from before it"),
    ],
)
def test_a_spike_takes_the_run_to_the_newest_checkpoint_before_it_within_the_limit(
    steps: tuple[int, ...], spikes: tuple[int, ...], answer: Fork | str
) -> None:
    assert answer_spike(2035, 2037, Facts(steps=steps, spikes=spikes), POLICY) == answer


@pytest.mark.parametrize("kind", [None, *ExitClass])
def test_every_remedy_is_one_line_and_ends_with_the_commands(kind: ExitClass | None) -> None:
    told = remedy(kind)
    assert told.endswith("then: stoker reload FILE; stoker resume FILE")
    assert "\n" not in told and len(told) < 180


def test_a_trainer_without_a_plan_makes_a_bad_step_again_and_skips_nothing() -> None:
    assert respond(case("non_finite", has_plan=False), POLICY) == Response(MADE_AGAIN)
    assert respond(case("non_finite", tried=MADE_AGAIN, has_plan=False), POLICY) == Response(MADE_AGAIN)


def test_a_trainer_that_tells_no_steps_never_fails_to_load() -> None:
    assert respond(case("crashed", LOADS, ONCE), POLICY).suspect == NAME
    assert respond(case("crashed", LOADS, ONCE, tells_steps=False), POLICY) == Response()
