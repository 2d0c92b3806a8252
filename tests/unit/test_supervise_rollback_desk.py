"""Rollbacks: what is asked is made once, whatever died in between, or refused with its reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.select import find_checkpoints
from stoker.plan.timelines import Timeline, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.log import ChainedLog
from stoker.store.requests import file_request, pending_requests, read_outcome
from stokerd.supervision.rollback import RollbackDesk
from support.checkpoint_data import seal
from support.pipelines import make_pipeline
from support.plan_data import plan_of, segment


class Shop:
    """A desk whose neighbours are stand-ins: every checkpoint is proven unless it is in `bad`."""

    def __init__(self, home: Path) -> None:
        self.pipeline = make_pipeline(home).pipeline
        self.layout = self.pipeline.layout
        self.layout.create()
        self.run = self.layout.run("main")
        self.run.create()
        for step in (10, 20, 30):
            seal(self.run.checkpoints, step, files={"timelines.jsonl": b""})
        self.bad: set[str] = set()
        self.words: list[str] = []
        self.back: list[int] = []
        self.turns = SimpleNamespace(changed="", doing="")
        shelf = SimpleNamespace(kept=set(), forget_missing=lambda: None)
        checkpoints = SimpleNamespace(
            shelf=shelf,
            mirror=None,
            let_go=lambda: None,
            fetch_step=lambda step, history: None,
            prove_now=lambda path: "invalid" if path.name in self.bad else "proven",
        )
        context = SimpleNamespace(
            layout=self.layout,
            pipeline=self.pipeline,
            events=SimpleNamespace(record=lambda word, *_, **__: self.words.append(word)),
        )
        book = SimpleNamespace(record=object(), rolled_back=self.back.append)
        planner = SimpleNamespace(plan=plan_of(segment(0, 1000)))
        self.desk = RollbackDesk(*cast(Any, (context, self.turns, checkpoints, book, planner)))

    def ask(self, to: int, timeline: int = 0) -> str:
        return file_request(
            self.layout, TRAIN_SUPERVISOR, "rollback", {"to": to, "reason": "x"}, {"timeline": timeline}
        )

    def consider(self) -> list[Any]:
        return [self.desk.consider(one) for one in pending_requests(self.layout, TRAIN_SUPERVISOR)]

    def here(self) -> list[int]:
        return sorted(one.step for one in find_checkpoints(self.run.checkpoints))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_rollback_is_announced_and_made_in_the_next_round(shop: Shop) -> None:
    asked = shop.ask(20)
    assert shop.consider() == [None]
    assert shop.turns.changed == "rolling back to step 20"
    assert shop.consider() == [None] and shop.words == ["rollback_asked"]
    assert shop.desk.take_up()
    assert (shop.here(), shop.back, shop.turns.changed) == ([10, 20], [20], "")
    outcome = read_outcome(shop.layout, asked)
    assert outcome is not None and (outcome["timeline"], outcome["moved"]) == (1, ["step-000000030"])
    assert pending_requests(shop.layout, TRAIN_SUPERVISOR) == []
    assert not shop.desk.take_up()


def test_one_that_was_made_before_its_maker_died_is_answered_and_not_made_again(shop: Shop) -> None:
    asked = shop.ask(20)
    ChainedLog(shop.run.timelines).append(Timeline(1, 0, 20, (), "x", asked).body())
    assert shop.desk.take_up()
    assert read_timelines(shop.run.timelines).current == 1
    outcome = read_outcome(shop.layout, asked)
    assert outcome is not None and (outcome["timeline"], shop.here()) == (1, [10, 20])
    assert "checkpoints_abandoned" in shop.words


def test_nothing_is_given_up_for_a_checkpoint_that_is_not_whole(shop: Shop) -> None:
    shop.bad.add("step-000000020")
    asked = shop.ask(20)
    assert not shop.desk.take_up()
    outcome = read_outcome(shop.layout, asked)
    assert outcome is not None and "possible are 30, 10, 0" in outcome["refused"]
    assert (shop.here(), shop.back, read_timelines(shop.run.timelines).current) == ([10, 20, 30], [], 0)


def test_two_asks_for_the_same_timeline_are_one_rollback(shop: Shop) -> None:
    first, second = shop.ask(20), shop.ask(10)
    assert shop.desk.take_up()
    outcomes = [read_outcome(shop.layout, one) or {} for one in (first, second)]
    assert sum("refused" in one for one in outcomes) == 1
    assert read_timelines(shop.run.timelines).current == 1


def test_what_cannot_be_is_refused_without_a_stop(shop: Shop) -> None:
    shop.ask(15)
    (refused,) = shop.consider()
    assert "possible are 30, 20, 10, 0" in refused["refused"] and shop.turns.changed == ""
