"""Rollbacks: what is asked is made once, whatever died in between, or refused with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.retention import find_checkpoints
from stoker.plan.timelines import Timeline, ancestry, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.log import ChainedLog
from stoker.store.requests import file_request, pending_requests, read_outcome
from stoker.supervise.mirror.inventory import Checkpoints
from stoker.supervise.state import Phase, RunState
from stokerd.supervision.requests import Requests
from stokerd.supervision.run import Run
from support.checkpoint_data import seal
from support.pipelines import make_pipeline
from support.plan_data import plan_of, segment


class Case:
    """A run with three checkpoints; every one is proven unless it is in `bad`."""

    def __init__(self, home: Path) -> None:
        pipeline = make_pipeline(home).pipeline
        self.layout = pipeline.layout
        self.layout.create()
        self.files = self.layout.run("main")
        self.files.create()
        for step in (10, 20, 30):
            seal(self.files.checkpoints, step, files={"timelines.jsonl": b""})
        self.bad: set[str] = set()
        self.words: list[str] = []
        self.back: list[int] = []
        store = SimpleNamespace(
            record=SimpleNamespace(fork=None),
            rolled_back=lambda step, halted: self.back.append(step),
            is_file_changed=False,
        )
        accounts = SimpleNamespace(
            timelines=lambda: read_timelines(self.files.timelines),
            history=lambda: ancestry(read_timelines(self.files.timelines)),
        )
        events = SimpleNamespace(record=lambda word, *_, **__: self.words.append(word))
        context = SimpleNamespace(pipeline=pipeline, events=events)
        accounts.planner = SimpleNamespace(plan=plan_of(segment(0, 1000)))
        parts = cast(Any, (store, Checkpoints(pipeline), None, accounts, *[None] * 3))
        self.run = Run(cast(Any, context), RunState(Phase.CLEANING, 0.0), *parts)
        self.requests = Requests(self.run)

    def ask(self, to: int, timeline: int = 0) -> str:
        return file_request(
            self.layout, TRAIN_SUPERVISOR, "rollback", {"to": to, "reason": "x"}, {"timeline": timeline}
        )

    def consider(self) -> list[Any]:
        """The answers given at once."""
        self.requests._look_at = 0.0
        asked = pending_requests(self.layout, TRAIN_SUPERVISOR)
        self.requests.refresh()
        return [read_outcome(self.layout, one.id) for one in asked]

    def take_up(self) -> bool:
        """Make what is asked for, as the loop does; whether any rollback was made."""
        self.requests.rollbacks.take_up()
        made = False
        while (asked := self.requests.rollbacks.of_request()) is not None:
            if asked.target and asked.is_here:
                verdict = "invalid" if asked.target in self.bad else "proven"
                self.run.change(proofs={asked.target: verdict})
            made |= self.requests.rollbacks.make(asked.request)
        return made

    def here(self) -> list[int]:
        return sorted(one.step for one in find_checkpoints(self.files.checkpoints))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_rollback_is_announced_and_made_in_the_next_round(case: Case) -> None:
    asked = case.ask(20)
    assert case.consider() == [None]
    assert len(case.run.state.rollbacks) == 1
    assert case.consider() == [None] and case.words == ["rollback_asked"]
    assert case.take_up()
    assert (case.here(), case.back) == ([10, 20], [20])
    outcome = read_outcome(case.layout, asked)
    assert outcome is not None and (outcome["timeline"], outcome["moved"]) == (1, ["step-000000030"])
    assert pending_requests(case.layout, TRAIN_SUPERVISOR) == []
    assert not case.take_up()


def test_one_that_was_made_before_its_maker_died_is_answered_and_not_made_again(case: Case) -> None:
    asked = case.ask(20)
    ChainedLog(case.files.timelines).append(Timeline(1, 0, 20, (), "x", asked).body())
    assert case.take_up()
    assert read_timelines(case.files.timelines).current == 1
    outcome = read_outcome(case.layout, asked)
    assert outcome is not None and (outcome["timeline"], case.here()) == (1, [10, 20])
    assert "checkpoints_abandoned" in case.words


def test_nothing_is_given_up_for_a_checkpoint_that_is_not_whole(case: Case) -> None:
    case.bad.add("step-000000020")
    asked = case.ask(20)
    assert not case.take_up()
    outcome = read_outcome(case.layout, asked)
    assert outcome is not None and "possible are 30, 10, 0" in outcome["refused"]
    assert (case.here(), case.back, read_timelines(case.files.timelines).current) == ([10, 20, 30], [], 0)


def test_two_asks_for_the_same_timeline_are_one_rollback(case: Case) -> None:
    first, second = case.ask(20), case.ask(10)
    assert case.take_up()
    outcomes = [read_outcome(case.layout, one) or {} for one in (first, second)]
    assert sum("refused" in one for one in outcomes) == 1
    assert read_timelines(case.files.timelines).current == 1


def test_what_cannot_be_is_refused_without_a_stop(case: Case) -> None:
    case.ask(15)
    (refused,) = case.consider()
    assert "possible are 30, 20, 10, 0" in refused["refused"] and case.run.state.rollbacks == ()


@pytest.mark.parametrize("verdict", ["proven", "invalid"])
def test_a_longer_horizon_goes_back_to_its_milestone_once_that_is_proven_or_says_why_not(
    case: Case, verdict: str
) -> None:
    case.run.accounts.longer_from = lambda at: 20
    assert case.requests.rollbacks.of_horizon() is None  # before the newest checkpoint is known
    case.run.change(is_settled=True, proofs={"step-000000020": verdict})
    asked = case.requests.rollbacks.of_horizon()
    assert asked is not None and (asked.request, asked.to, asked.is_here) == ("", 20, True)
    assert case.requests.rollbacks.make("") is (verdict == "proven")
    kept = verdict == "invalid"
    assert case.here() == ([10, 20, 30] if kept else [10, 20])
    assert case.words == (["milestone_missing"] if kept else ["checkpoints_abandoned", "horizon_longer"])
    case.run.change(is_decay_kept=kept)
    assert (case.requests.rollbacks.of_horizon() is None) is kept
