"""Timelines: which steps belong to the run's history after rollbacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.checkpoints.retention import counts
from stoker.plan.positions import Position
from stoker.plan.timelines import (
    Timeline,
    Timelines,
    ancestry,
    committed,
    parse_timelines,
    read_timelines,
    restore_timelines,
    skips,
)
from stoker.store.errors import DataError
from stoker.store.log import ChainedLog, read_log

SKIP = (Position(0, 115200), Position(0, 116480))
FORKS = (Timeline(1, 0, 900, (SKIP,), "non_finite"), Timeline(2, 1, 500, (), "operator"))


def write(path: Path, forks: tuple[Timeline, ...]) -> None:
    log = ChainedLog(path)
    for fork in forks:
        log.append(fork.body())


def test_forks_are_read_back_in_order(tmp_path: Path) -> None:
    write(tmp_path / "timelines.jsonl", FORKS)
    timelines = read_timelines(tmp_path / "timelines.jsonl")
    assert timelines.forks == FORKS
    assert timelines.current == 2


def test_a_run_without_rollback_is_on_timeline_0(tmp_path: Path) -> None:
    timelines = read_timelines(tmp_path / "timelines.jsonl")
    assert timelines.current == 0
    assert ancestry(timelines) == [(0, None)]
    assert skips(timelines) == ()


def test_an_ancestor_counts_up_to_the_earliest_fork_on_the_way() -> None:
    timelines = Timelines(FORKS)
    assert ancestry(timelines, 1) == [(1, None), (0, 900)]
    assert ancestry(timelines) == [(2, None), (1, 500), (0, 500)]
    assert counts(0, 500, ancestry(timelines))
    assert not counts(0, 501, ancestry(timelines))
    assert counts(2, 10_000, ancestry(timelines))


def test_a_sibling_is_no_ancestor_and_its_skips_do_not_count() -> None:
    timelines = Timelines((FORKS[0], Timeline(2, 0, 700, (), "")))
    assert [number for number, _ in ancestry(timelines)] == [2, 0]
    assert skips(timelines) == ()
    assert skips(timelines, 1) == (SKIP,)


@pytest.mark.parametrize(
    "forks",
    [(Timeline(2, 0, 5, (), ""),), (Timeline(1, 1, 5, (), ""),), (FORKS[0], Timeline(1, 0, 5, (), ""))],
)
def test_numbers_out_of_order_are_refused(tmp_path: Path, forks: tuple[Timeline, ...]) -> None:
    write(tmp_path / "timelines.jsonl", forks)
    with pytest.raises(DataError, match="is out of order"):
        read_timelines(tmp_path / "timelines.jsonl")


def test_a_timeline_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="timeline 3"):
        ancestry(Timelines(FORKS), 3)


def test_lost_forks_come_back_from_a_copy_line_for_line(tmp_path: Path) -> None:
    here, copy = tmp_path / "timelines.jsonl", tmp_path / "copy.jsonl"
    write(copy, FORKS)
    write(here, FORKS[:1])
    carried = parse_timelines(read_log(copy.read_bytes()), "the copy")
    assert restore_timelines(here, carried) == 1
    assert here.read_bytes() == copy.read_bytes()
    assert restore_timelines(here, carried) == 0
    assert restore_timelines(here, Timelines()) == 0


def test_another_history_is_not_restored(tmp_path: Path) -> None:
    here = tmp_path / "timelines.jsonl"
    write(here, (Timeline(1, 0, 7, (), "another"),))
    write(tmp_path / "copy.jsonl", FORKS)
    before = here.read_bytes()
    with pytest.raises(DataError, match="two histories"):
        restore_timelines(here, read_timelines(tmp_path / "copy.jsonl"))
    assert here.read_bytes() == before


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # (timeline, step, trained): timeline 1 forked from 0 at 2, timeline 2 from 1 at 3
        ([(0, 1, True), (0, 2, True), (0, 3, True), (1, 3, True), (1, 4, True), (2, 4, True)], [0, 0, 1, 2]),
        # nothing was trained on the newest yet
        ([(0, 1, True), (0, 2, True), (0, 3, True), (1, 3, True), (1, 4, True)], [0, 0, 1]),
        # timeline 1 had to begin a step before its fork, and 2 was evaluated where it begins
        (
            [(0, 1, True), (0, 2, True), (1, 2, True), (1, 3, True), (2, 3, False), (2, 4, True)],
            [0, 1, 1, 2, 2],
        ),
    ],
)
def test_each_committed_step_has_the_row_of_the_newest_timeline_that_made_it(
    rows: list[tuple[int, int, bool]], expected: list[int]
) -> None:
    history = [(2, None), (1, 3), (0, 2)]
    assert [timeline for timeline, _, _ in committed(rows, history, lambda row: row)] == expected
