"""Launches over a part of the plan, where the hot disk does not hold all that is planned."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.plan.consumption import Holdings, consumed_body, read_holdings
from stoker.plan.growth import AHEAD_BATCHES
from stoker.plan.log import Plan
from stoker.plan.positions import START, Position, left_after
from stoker.plan.residency import ShardSet, next_use, reach_from, to_evict
from stoker.store.errors import StorageError
from stoker.store.layout import StateLayout
from stoker.store.record import write_record
from stoker.supervise.actions import Job, KeepBooks
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.gates import Gate, gate_wants
from stoker.supervise.state import Phase
from stokerd.supervision.books import data
from stokerd.supervision.books.accounts import Accounts
from stokerd.supervision.books.data import STALL_S
from stokerd.supervision.effects import KEEP_S, Effects
from stokerd.supervision.keep import _hold_out
from support.config_files import train_of
from support.pipelines import make_pipeline
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

    def needed(self, position: Position, skips: Any, upto: Position | None = None) -> list[int]:
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


class Launches:
    """The data side of a run over a planner; `look` decides where the next launch stops."""

    def __init__(self, hot: Hot, home: Path, reach: Position | None = None) -> None:
        events = SimpleNamespace(record=lambda word, *_, **__: hot.told.append(word))
        pipeline = make_pipeline(home, train__global_batch=BATCH).pipeline
        self.data = data.DataReadiness(pipeline, cast(Any, events), cast(Any, hot), gate_wants(pipeline))
        self.reach = reach

    def look(self) -> None:
        self.reach = self.data.need(START, (), self.reach, BATCH)


def test_a_launch_waits_for_all_while_sets_come_back_and_goes_in_parts_once_none_does(
    hot: Hot, tmp_path: Path
) -> None:
    one = Launches(hot, tmp_path)
    one.look()
    hot.now += STALL_S - 1
    hot.there = {0}
    one.look()  # one came back
    hot.now += STALL_S - 1
    one.look()
    assert (one.reach, hot.told) == (None, [])
    hot.now += 1
    one.look()
    assert one.reach == Position(1, 0)
    assert hot.told == ["plan_in_parts"]
    hot.there = {0, 1}
    one.look()
    assert one.reach == Position(2, 0), "as far as hot goes, at once"
    hot.there = {0, 1, 2}
    one.look()
    assert one.reach is None
    assert hot.told == ["plan_in_parts"]


def test_a_launch_in_parts_makes_the_whole_batches_of_what_it_may_read() -> None:
    at = Checkpoint(Path(), 7, {"position": [0, 0]})
    accounts: Any = SimpleNamespace(
        config=train_of(global_batch=BATCH),
        reach=Position(1, 0),
        asked_until=None,
        evaluations=(),
    )
    accounts.windows_left = lambda position: left_after(PLAN, position)
    assert Accounts.until(accounts, at) == 7 + WINDOWS // BATCH
    accounts.reach = None
    assert Accounts.until(accounts, at) is None


def test_where_not_even_a_few_batches_fit_a_launch_makes_one(hot: Hot, tmp_path: Path) -> None:
    small = plan_of(*(segment(n, BATCH, sets=[fake_set(str(n))]) for n in range(AHEAD_BATCHES + 2)))
    hot.plan = small
    one = Launches(hot, tmp_path)
    for waited, reach in ((0.0, None), (STALL_S, Position(AHEAD_BATCHES, 0)), (STALL_S, Position(1, 0))):
        hot.now += waited
        one.look()
        assert one.reach == reach


def test_the_plan_grows_again_after_a_rest_of_its_own_length_or_a_proof(hot: Hot, tmp_path: Path) -> None:
    grown: list[float] = []

    def grow(*_: Any) -> tuple[()]:
        grown.append(hot.now)
        hot.now += 2.0
        return ()

    def nothing(*_: Any) -> dict[str, str]:
        return {}

    vars(hot).update(grow=grow, to_prove=nothing, unproven=nothing, proven=nothing)
    one = Launches(hot, tmp_path).data
    for then in (100.0, 109.0, 110.0, 113.0):
        hot.now = then
        one.grow(cast(Any, None), 1, 64)
    one.whole("ab", "cd")
    one.grow(cast(Any, None), 1, 64)
    assert grown == [100.0, 110.0, 113.0]


def test_books_that_cannot_be_kept_wait_for_their_time(tmp_path: Path) -> None:
    changed: dict[str, Any] = {}
    began = time.monotonic()

    def full() -> None:
        raise StorageError("the disk is full", errno.ENOSPC)

    run: Any = SimpleNamespace(state=SimpleNamespace(phase=Phase.TRAINING), change=changed.update)
    run.prune_and_keep = full
    with pytest.raises(StorageError):
        Effects._keep_books(cast(Any, SimpleNamespace(run=run)), KeepBooks())
    assert changed["keep_at"] > began + KEEP_S / 2


def test_a_supervisor_that_starts_anew_goes_on_in_parts(hot: Hot, tmp_path: Path) -> None:
    layout = StateLayout(tmp_path)
    layout.create()
    layout.run("main").create()
    body = {"step": 0, "position": [0, 0], "tokens": 0}
    record = consumed_body(Holdings("main", Plan((), ""), reach=Position(1, 0)), None, body)
    write_record(layout.run("main").consumed, record)
    assert read_holdings(layout)[0].reach == Position(1, 0)
    one = Launches(hot, tmp_path, Position(1, 0))
    one.look()
    assert one.reach == Position(1, 0)


def test_a_hot_disk_full_of_planned_sets_makes_room_for_a_later_phases_held_out_windows() -> None:
    planned = [fake_set(str(n))[0] for n in range(3)]
    books: Any = SimpleNamespace(reach=None, keep=lambda at: None)
    planner = SimpleNamespace(note_wants=lambda *wants: None)
    readiness = SimpleNamespace(
        needed={"held": ""}, gate=None, launchable=lambda pin: [Gate("closed", "bringing back 1 shard set")]
    )
    readiness.to_prove = lambda: None
    run: Any = SimpleNamespace(data=readiness, planner=planner, accounts=books, at=None)
    assert list(_hold_out(run, None, Job("heldout"))) == []
    holdings = [Holdings("main", PLAN, START, ("held",), reach=books.reach)]
    sets = [ShardSet(key, 10, 1, hot=True, warm=True) for key in planned]
    sets.append(ShardSet("held", 10, 1, hot=False, warm=True))
    rank = next_use(holdings, [])
    leaving, _ = to_evict(sets, holdings, rank, free_bytes=0, wanted_free_bytes=10, keep_sets=1)
    assert leaving == [planned[2]]
