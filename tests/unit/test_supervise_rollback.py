"""Rollbacks: what can be gone back to, which windows are skipped, and a crash anywhere on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.checker import Crash, CrashFound, check_crashes
from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.retention import candidates, counts, find_checkpoints
from stoker.config.schema import Quarantine
from stoker.corpus.records.sources import Source
from stoker.plan.log import Plan
from stoker.plan.positions import Position
from stoker.plan.timelines import Timeline, Timelines, ancestry, read_timelines, restore_timelines
from stoker.store.errors import DataError
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.requests import Request
from stoker.supervise import rollback as forking
from stoker.supervise.rollback import (
    Moved,
    RollbackContext,
    RollbackRefused,
    RollbackRequest,
    already,
    decide,
    finish,
    parse_request,
    require_lost,
    restore_lost,
    roll_back,
    rollback_context,
    skipped_windows,
)
from stoker.supervise.run.launch_record import SETTINGS, launched_body, note_launch
from support.checkpoint_data import seal
from support.plan_data import plan_of, segment

BATCH = 4
PLAN = plan_of(segment(0, 40), segment(1, 200))
ROOMY = Quarantine(keep_checkpoints=9)


class Run:
    """A run of four windows a step, with checkpoints but no trainer."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        self.layout.create()
        self.at: dict[int, Position] = {0: Position(0, 0)}

    def train(self, first: int, last: int, *, every: int = 10, timeline: int = 0) -> None:
        for step in range(first, last + 1):
            windows = step * BATCH
            self.at[step] = Position(0, windows) if windows <= 40 else Position(1, windows - 40)
            if step % every == 0:
                self.seal(step, timeline)

    def seal(self, step: int, timeline: int) -> None:
        copy = self.layout.timelines.read_bytes() if self.layout.timelines.exists() else b""
        seal(
            self.layout.checkpoints,
            step,
            timeline=timeline,
            position=self.at[step].as_list(),
            files={"timelines.jsonl": copy},
        )

    def context(self) -> RollbackContext:
        return rollback_context(self.layout, PLAN, BATCH)

    def roll_back(self, to: int, *skip: tuple[int, int], budget: Quarantine = ROOMY) -> Moved:
        return roll_back(self.layout, decide(RollbackRequest(to, skip), self.context()), budget)

    def here(self) -> list[int]:
        return sorted(one.step for one in find_checkpoints(self.layout.checkpoints))

    def abandoned(self) -> list[str]:
        return sorted(f"{path.parent.name}/{path.name[-2:]}" for path in self.layout.abandoned.glob("t*/*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Forty steps on timeline 0, sealed every ten."""
    run = Run(tmp_path_factory.mktemp("trained") / "main")
    run.train(1, 40)
    return run


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    shutil.copytree(trained.layout.root, tmp_path / "main")
    run = Run(tmp_path / "main")
    run.at = dict(trained.at)
    return run


def test_the_steps_after_the_one_gone_back_to_are_moved_and_what_they_skip_is_written_down(run: Run) -> None:
    moved = run.roll_back(20, (20, 25), (30, 31))
    (fork,) = read_timelines(run.layout.timelines).forks
    assert (fork.parent, fork.from_step) == (0, 20)
    assert fork.skip == ((Position(1, 40), Position(1, 60)), (Position(1, 80), Position(1, 84)))
    assert skipped_windows(PLAN, fork.skip) == 24
    assert moved.names == ("step-000000030", "step-000000040")
    assert (run.here(), run.abandoned()) == ([10, 20], ["t0/30", "t0/40"])


def test_a_second_rollback_on_top_and_one_to_before_the_first_fork(run: Run) -> None:
    run.roll_back(20)
    run.train(21, 40, timeline=1)
    run.roll_back(30)
    assert (run.here(), run.abandoned()) == ([10, 20, 30], ["t0/30", "t0/40", "t1/40"])
    run.train(31, 40, timeline=2)
    run.roll_back(10, (15, 20))
    assert run.here() == [10]
    assert run.abandoned() == ["t0/30", "t0/40", "t1/40", "t2/20", "t2/30", "t2/40"]
    timelines = read_timelines(run.layout.timelines)
    assert ancestry(timelines) == [(3, None), (2, 10), (1, 10), (0, 10)]
    assert timelines.forks[2].skip == ((run.at[15], run.at[20]),)  # steps that timeline 0 made


def test_a_span_over_what_was_skipped_before_counts_its_windows_once(run: Run) -> None:
    run.roll_back(20, (20, 25))
    skip = read_timelines(run.layout.timelines).forks[0].skip
    assert skipped_windows(PLAN, (*skip, (Position(1, 50), Position(1, 70)))) == 30


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (RollbackRequest(15), "possible are 40, 30, 20, 10, 0"),
        (RollbackRequest(50), "possible are"),
        (RollbackRequest(20, timeline=1), "on timeline 0, not on 1"),
        (RollbackRequest(20, ((10, 30),)), "no span of steps after step 20"),
        (RollbackRequest(20, ((30, 30),)), "no span"),
        (RollbackRequest(20, ((30, 90),)), "is not known"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(run: Run, ask: RollbackRequest, said: str) -> None:
    with pytest.raises(RollbackRefused, match=said):
        decide(ask, run.context())


def test_steps_between_checkpoints_are_counted_with_the_batch_of_the_launch_that_made_them(run: Run) -> None:
    place = run.context().place
    assert (place(9), place(33), place(45)) == (run.at[9], run.at[33], Position(1, 140))
    run.roll_back(20, (20, 25))
    settings: dict[str, Any] = dict.fromkeys(SETTINGS)
    launch = {**settings, "launch": "l", "timeline": 1, "global_batch": 2}
    note_launch(run.layout.launches, launched_body(launch, resume_step=20, time=""))
    place = run.context().place
    assert (place(15), place(22)) == (run.at[15], Position(1, 64)), "behind the windows that are skipped"


def test_the_beginning_is_always_possible(run: Run) -> None:
    run.roll_back(0)
    assert run.here() == []
    assert ancestry(read_timelines(run.layout.timelines)) == [(1, None), (0, 0)]


def request(args: Any, condition: Any = None, verb: str = "rollback") -> Request:
    return Request("r-7", verb, args, condition, "test")


@pytest.mark.parametrize(
    ("args", "condition", "said"),
    [
        ({}, None, "rollback: to: "),
        ({"to": -1}, None, "to: .* greater than or equal to 0, not -1"),
        ({"to": True}, None, "to: .* integer, not True"),
        ({"to": 1, "skips": []}, None, "has no 'skips'; it has to, skip, reason, and if timeline"),
        ({"to": 1, "lost": "ab" * 8}, None, "has no 'lost'"),
        ({"to": 1, "request": "r-8"}, None, "has no 'request'"),
        ({"to": 900}, {"to": 1}, "has no 'to'"),
        ({"to": 1, "skip": [[1]]}, None, r"skip\.0\.1: "),
        ({"to": 1, "skip": 3}, None, "skip: .* not 3"),
        ({"to": 1}, {"timeline": "0"}, "timeline: .* not '0'"),
        ({"to": 1}, {"step": 0}, "has no 'step'"),
    ],
)
def test_a_request_that_says_something_else_is_refused(args: Any, condition: Any, said: str) -> None:
    with pytest.raises(RollbackRefused, match=said):
        parse_request(request(args, condition), ())


@pytest.mark.parametrize(
    "args", [{}, {"key": "ab"}, {"key": "AB" * 8}, {"key": "ab" * 8, "by": 1}, {"key": "ab" * 8, "to": 0}]
)
def test_a_set_is_given_up_by_at_least_sixteen_digits_of_its_key(args: dict[str, Any]) -> None:
    with pytest.raises(RollbackRefused, match=r"is no shard set's|skip_set has no '(by|to)'"):
        parse_request(request(args, verb="skip_set"), ())
    ask = parse_request(request({"key": "ab" * 8}, {"timeline": 1}, "skip_set"), (10, 30))
    assert (ask.to, ask.lost, ask.timeline) == (30, "ab" * 8, 1)


def test_a_request_that_was_acted_on_is_known_again() -> None:
    ask = parse_request(request({"to": 10, "skip": [[10, 12]], "reason": "nan"}, {"timeline": 0}), ())
    assert ask == RollbackRequest(10, ((10, 12),), "nan", 0, "r-7")
    fork = Timeline(1, 0, 10, (), "nan", "r-7")
    assert parse_request(request({"to": 10, "skip": None}), ()) == RollbackRequest(10, request="r-7")
    assert already(ask, Timelines((fork,))) == fork
    assert already(RollbackRequest(10), Timelines((Timeline(1, 0, 10, (), ""),))) is None


def test_abandoned_checkpoints_keep_to_their_budget_oldest_first(run: Run) -> None:
    moved = run.roll_back(10, budget=Quarantine(keep_checkpoints=2))
    assert (moved.dropped, run.abandoned()) == (("t0/step-000000020",), ["t0/30", "t0/40"])
    assert run.roll_back(0, budget=Quarantine(keep_checkpoints=2, keep_bytes=1)).dropped == (
        "t0/step-000000030",
        "t0/step-000000040",
    )
    assert run.abandoned() == ["t1/10"]


def test_timelines_that_were_lost_or_cut_come_back_from_the_newest_checkpoint(run: Run) -> None:
    run.roll_back(20)
    run.train(21, 30, timeline=1)
    run.roll_back(30)
    run.train(31, 40, timeline=2)
    whole = run.layout.timelines.read_bytes()
    run.layout.timelines.unlink()
    assert restore_lost(run.layout) == 2
    assert run.layout.timelines.read_bytes() == whole
    run.layout.timelines.write_bytes(whole[: len(whole) - 20])
    assert restore_lost(run.layout) == 1
    assert read_timelines(run.layout.timelines).current == 2
    assert restore_lost(run.layout) == 0


def test_a_lost_line_that_nobody_has_a_copy_of_stops_the_run(run: Run) -> None:
    run.roll_back(20)
    run.layout.timelines.write_bytes(b"")
    with pytest.raises(DataError, match="timeline 1: the line of a rollback is lost"):
        restore_lost(run.layout)


def hold_against(run: Run, step: int) -> None:
    """What is done with the newest proven checkpoint."""
    copy = run.layout.checkpoints / checkpoint_name(step) / "timelines.jsonl"
    restore_timelines(run.layout.timelines, read_timelines(copy))


def edited(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"from":20', b'"from":10'), *lines[1:]]


@pytest.mark.parametrize(
    "change",
    [edited, lambda lines: lines[::-1], lambda lines: lines[1:], lambda lines: [edited(lines[:1])[0]]],
    ids=["edited", "reordered", "first removed", "last edited"],
)
def test_timelines_that_were_changed_are_refused(run: Run, change: Callable[[Any], list[bytes]]) -> None:
    run.roll_back(20)
    run.train(21, 30, timeline=1)
    run.roll_back(30)
    run.train(31, 40, timeline=2)
    lines = run.layout.timelines.read_bytes().splitlines(keepends=True)
    run.layout.timelines.write_bytes(b"".join(change(lines)))
    with pytest.raises(DataError, match=r"lines were changed|two histories"):
        restore_lost(run.layout)
        hold_against(run, 40)


def test_a_last_line_that_was_edited_is_found_by_the_checkpoints_copy(run: Run) -> None:
    run.roll_back(20)
    run.train(21, 30, timeline=1)
    raw = run.layout.timelines.read_bytes()
    run.layout.timelines.write_bytes(raw.replace(b'"from":20', b'"from":10'))
    assert restore_lost(run.layout) == 0
    with pytest.raises(DataError, match="two histories"):
        hold_against(run, 30)


def prepared(root: Path) -> None:
    run = Run(root / "main")
    run.train(1, 3, every=1)
    run.layout.consumed.write_bytes(b"{}")


def rolled_back(root: Path) -> None:
    layout = RunLayout(root / "main")
    roll_back(layout, Timeline(1, 0, 1, (), "crash"), ROOMY)


def whole(root: Path, crash: Crash) -> None:
    """Either nothing has happened, or all of it: every checkpoint once, and none past the fork in place."""
    layout = RunLayout(root / "main")
    timelines = read_timelines(layout.timelines)
    here = {one.step for one in find_checkpoints(layout.checkpoints)}
    gone = {int(path.name[-9:]) for path in layout.abandoned.glob("t0/*")}
    assert not crash.complete or timelines.forks
    assert (here, gone) == (({1}, {2, 3}) if timelines.forks else ({1, 2, 3}, set()))
    assert not (timelines.forks and layout.consumed.exists())


def recovered(root: Path) -> None:
    layout = RunLayout(root / "main")
    newest = candidates(find_checkpoints(layout.checkpoints), ancestry(read_timelines(layout.timelines)))[0]
    history = ancestry(read_timelines(layout.timelines))
    assert newest.timeline is not None and counts(newest.timeline, newest.step, history)
    finish(layout, ROOMY)


def test_a_power_cut_anywhere_in_a_rollback_leaves_it_undone_or_to_be_finished() -> None:
    report = check_crashes(rolled_back, recovered, whole, prepare=prepared)
    assert report.exhaustive and report.trees > 3


def test_moving_checkpoints_before_the_line_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(root: Path) -> None:
        layout = RunLayout(root / "main")
        (layout.abandoned / "t0").mkdir()
        forking.move_durably(
            layout.checkpoints / checkpoint_name(3), layout.abandoned / "t0" / checkpoint_name(3)
        )
        ChainedLog(layout.timelines).append(Timeline(1, 0, 1, (), "crash").body())

    with pytest.raises(CrashFound):
        check_crashes(wrong, recovered, whole, prepare=prepared)


def test_a_plan_that_lost_its_end_gives_no_place(run: Run) -> None:
    short = rollback_context(run.layout, Plan(PLAN.entries[:1], ""), BATCH)
    with pytest.raises(DataError, match="lies beyond the plan"):
        decide(RollbackRequest(10, ((20, 30),)), short)


def test_a_set_that_can_come_back_is_not_given_up() -> None:
    source = Source("d", "a.parquet", 100, "ab" * 32)
    require_lost("cd" * 32, {})
    require_lost("cd" * 32, {"cd" * 32: source.moved("quarantined", reason="page_corrupt")})
    with pytest.raises(RollbackRefused, match="is not lost"):
        require_lost("cd" * 32, {"cd" * 32: source})
