"""The log of launches: which settings made a committed step, whatever was done again or rolled back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config.schema_train import Schedule
from stoker.plan.positions import Position
from stoker.plan.timelines import Timeline, Timelines
from stoker.supervise.run.horizon import longer_from, milestones
from stoker.supervise.run.launch_record import (
    SETTINGS,
    Launched,
    Makers,
    ema_change,
    last_begun,
    launched_body,
    note_launch,
    read_launches,
    schedule_body,
    threads,
)

FORKS = Timelines((Timeline(1, 0, 50, ((Position(0, 1), Position(0, 2)),), ""), Timeline(2, 1, 30, (), "")))


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, 1), (2, 2), (15, 15), (16, 15), (32, 31)],
)
def test_the_trainers_threads_leave_the_sealer_one_of_many_cores(cores: int, expected: int) -> None:
    assert threads(cores) == expected


def test_the_record_of_a_schedule_has_the_start_of_wsds_decay_and_no_other_is_changed() -> None:
    cosine = {"name": "cosine", "warmup_steps": 2000, "min_ratio": 0.1}
    assert schedule_body(Schedule(), 100) == cosine
    wsd = {**cosine, "name": "wsd", "decay": 0.2}
    assert schedule_body(Schedule(name="wsd", decay=0.2), 100) == {**wsd, "decay_begins": 80}
    assert schedule_body(Schedule(name="wsd", decay=0.2), 2)["decay_begins"] == 1  # it decays at least one


def launched(name: str, timeline: int, step: int) -> Launched:
    return Launched(name, timeline, step, {}, "")


@pytest.mark.parametrize(
    ("timelines", "launches", "expected"),
    [
        (Timelines(), [("a", 0, 0), ("b", 0, 50)], {1: "a", 50: "a", 51: "b", 99: "b"}),
        # the second went further back than the first had come: it made those steps again
        (Timelines(), [("a", 0, 0), ("b", 0, 20)], {20: "a", 21: "b", 60: "b"}),
        (FORKS, [("a", 0, 0), ("b", 1, 50), ("c", 2, 30)], {30: "a", 31: "c", 60: "c"}),
        # timeline 2 lost the checkpoint of step 30 and had to begin at 20
        (FORKS, [("a", 0, 0), ("c", 2, 30), ("d", 2, 20)], {20: "a", 25: "d", 31: "d"}),
        (FORKS, [("b", 1, 50)], {10: None, 60: None}),
    ],
)
def test_a_committed_step_was_made_by_the_last_launch_of_its_history_that_began_before_it(
    timelines: Timelines, launches: list[tuple[str, int, int]], expected: dict[int, str | None]
) -> None:
    makers = Makers([launched(*one) for one in launches], timelines)
    found = {step: makers.of(step) for step in expected}
    assert {step: one.launch if one else None for step, one in found.items()} == expected


def test_a_line_written_in_the_middle_of_a_launch_is_not_its_beginning() -> None:
    lines = [launched("a", 0, 0), launched("b", 0, 20), launched("b", 0, 20), launched("b", 0, 30)]
    assert last_begun(lines) == 20
    assert last_begun([]) == 0


def decaying(timeline: int, step: int, steps: int, begins: int | None) -> Launched:
    schedule = {"decay_begins": begins} if begins else {}
    return Launched("x", timeline, step, {"steps": steps, "schedule": schedule}, "")


ONCE = (0, 0, 100, 80)  # timeline, first step, horizon, where its decay begins


@pytest.mark.parametrize(
    ("launches", "step", "steps", "begins", "start"),
    [
        ([ONCE], 100, 200, 160, 80),
        ([ONCE], 100, 101, 81, 80),
        ([ONCE, (0, 85, 100, 80)], 90, 200, 160, 80),  # another launch of the same decay
        ([ONCE], 80, 200, 160, None),  # not past its begin
        ([ONCE], 85, 100, 90, None),  # as long, with a shorter decay
        ([ONCE], 70, 60, 48, None),  # shorter
        ([ONCE], 100, 200, None, None),  # another schedule now
        ([(0, 0, 100, None)], 100, 200, 160, None),  # another schedule before
        ([ONCE, (0, 70, 80, 64)], 75, 200, 160, 70),  # a shorter horizon began to decay at once
        ([ONCE, (0, 90, 200, 160)], 90, 200, 160, None),  # it has gone on from there once, and died
        ([ONCE, (0, 90, 200, 160)], 150, 400, 320, None),  # that decay is long past, 150 is none
        ([ONCE, (1, 50, 200, 160)], 165, 400, 320, 160),
        ([(0, 0, 100, 80)], 100, 110, 70, None),  # a longer decay that begins before
    ],
)
def test_a_longer_horizon_starts_where_the_decay_of_the_newest_steps_began(
    launches: list[tuple[int, int, int, int | None]],
    step: int,
    steps: int,
    begins: int | None,
    start: int | None,
) -> None:
    forks = Timelines((Timeline(1, 0, 50, (), ""),)) if launches[-1][0] else Timelines()
    made = [decaying(*one) for one in launches]
    assert longer_from(made, forks, step=step, steps=steps, begins=begins) == start


def test_the_steps_where_decays_begin_are_milestones() -> None:
    assert milestones([decaying(0, 0, 100, 80), decaying(0, 90, 200, 160), decaying(0, 95, 9, None)]) == {
        80,
        160,
    }


@pytest.mark.parametrize(
    ("emas", "expected"),
    [
        ([{"decay": 0.9}], {}),
        ([None, None], {}),
        ([{"decay": 0.9}, {"decay": 0.9}], {}),
        ([{"decay": 0.9}, None, {"decay": 0.9}], {"step": 2, "change": "begun", "decay": 0.9}),
        ([{"decay": 0.9}, {"decay": 0.8}], {"step": 1, "change": "changed", "decay": 0.8}),
        ([{"decay": 0.9}, None], {"step": 1, "change": "ended"}),
    ],
)
def test_a_launch_with_another_average_than_the_one_before_is_told(
    emas: list[dict[str, Any] | None], expected: dict[str, Any]
) -> None:
    settings = [{} if ema is None else {"ema": ema} for ema in emas]
    assert ema_change([Launched("", 0, step, each, "") for step, each in enumerate(settings)]) == expected


def body(name: str, **changes: Any) -> dict[str, Any]:
    record = dict.fromkeys(SETTINGS) | {"launch": name, "timeline": 0, "global_batch": 4}
    return launched_body({**record, **changes}, resume_step=7, time="2026-11-20T12:00:00Z")


def test_a_torn_line_hinders_no_launch_and_an_edited_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    assert note_launch(path, body("a")) == ()
    path.write_bytes(path.read_bytes() + b'{"v":1,"lau')
    assert note_launch(path, body("b", global_batch=8)) == ()
    launches, damage = read_launches(path)
    assert ([one.launch for one in launches], damage) == (["a", "b"], ())
    assert [one.settings["global_batch"] for one in launches] == [4, 8]
    path.write_bytes(path.read_bytes().replace(b'"launch":"a"', b'"launch":"x"'))
    assert "lines were changed" in note_launch(path, body("c"))[0]
    assert len(read_launches(path)[0]) == 3
