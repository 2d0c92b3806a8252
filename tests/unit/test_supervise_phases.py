"""Phases: which settings a step has, what is told of their beginning, and where the plan is cut for them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.config.checks import notes
from stoker.config.phase_checks import phase_memory
from stoker.plan.growth import Cut
from stoker.plan.positions import START, Position, Skip, left_after
from stoker.store.files import make_dir
from stoker.store.record import write_record
from stoker.supervise.audit.audit import _View
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.launch_record import Launch, passes_a_phase, phase_change
from stokerd.sharding import parallelism
from stokerd.supervision.books.accounts import Accounts
from support.config_files import MINIMAL, load_text, train_of, write_pipeline
from support.plan_data import plan_of, segment

PHASES = [
    {"name": "wide", "from": 10, "global_batch": 4},
    {"name": "long", "from": 20, "seq_len": 128},
    {"name": "longer", "from": 30, "seq_len": 256, "global_batch": 1, "rope": {"theta": 5e5}},
]
TRAIN = train_of(seq_len=64, global_batch=2, phases=PHASES, checkpoint={"milestones": [7]})
PLAN = plan_of(segment(0, 1000))


def accounts(*skips: Skip) -> Any:
    """The books of a run with these phases and one entry of a plan."""
    made = SimpleNamespace(config=TRAIN, planner=SimpleNamespace(plan=PLAN), evaluations=(), reach=None)
    made.asked_until, made.pace = None, SimpleNamespace(windows_per_s=None)
    made.windows_left = lambda position: left_after(PLAN, position, skips)
    made.steps = lambda at: TRAIN.horizon
    return made


def at(step: int, offset: int) -> Checkpoint:
    return Checkpoint(Path(), step, {"position": [0, offset]})


@pytest.mark.parametrize(
    ("step", "until", "seq_len", "cuts"),
    [
        (0, 10, 64, [(20 + 40, 128), (20 + 80, 256)]),
        (9, 10, 64, [(20 + 40, 128), (20 + 80, 256)]),
        (10, 20, 64, [(20 + 40, 128), (20 + 80, 256)]),
        (20, 30, 128, [(20 + 80, 256)]),
        (30, None, 256, []),
    ],
)
def test_a_launch_ends_where_the_next_phase_begins_and_the_plan_is_cut_there(
    step: int, until: int | None, seq_len: int, cuts: list[tuple[int, int]]
) -> None:
    offset = TRAIN.windows(0, step)
    assert Accounts.until(accounts(), at(step, offset)) == until
    assert Accounts.lengths(accounts(), at(step, offset)) == (seq_len, tuple(Cut(*cut) for cut in cuts))
    # A rollback to this step that skips 6 windows moves the data ahead by as many.
    skip = Position(0, offset), Position(0, offset + 6)
    moved = tuple(Cut(windows + 6, length) for windows, length in cuts)
    assert Accounts.lengths(accounts(skip), at(step, offset)) == (seq_len, moved)
    assert Accounts.windows_ahead(accounts(skip), at(step, offset + 6)) == 6
    assert Accounts.windows_ahead(accounts(skip), at(step, offset)) == 0


def test_windows_that_were_planned_with_another_length_are_counted() -> None:
    """A longer horizon or a rollback goes back to before a phase, whose windows are planned."""
    made = accounts(skip := (Position(1, 0), Position(1, 4)))
    made.planner.plan = plan = plan_of(
        segment(0, 40, seq_len=64), segment(1, 10, seq_len=128), segment(2, 9, seq_len=64)
    )
    made.windows_left = lambda position: left_after(plan, position, [skip])
    for step, place, count in (
        (5, Position(0, 10), 0),
        (5, Position(0, 40), 6),  # of the longer ones; what is skipped does not count
        (5, Position(1, 10), 0),
        (20, Position(0, 10), 30),
        (20, Position(2, 2), 7),  # to the plan's end
    ):
        there = Checkpoint(Path(), step, {"position": place.as_list()})
        assert Accounts.windows_of_another_length(made, there) == count


@pytest.mark.parametrize(
    ("resume_step", "until", "passes"),
    [(0, None, True), (0, 15, True), (0, 10, False), (0, 4, False), (10, 20, False), (30, None, False)],
)
def test_a_launch_from_before_the_file_had_a_phase_is_stopped_before_it(
    resume_step: int, until: int | None, passes: bool
) -> None:
    launch = Launch("l", 0, None, resume_step, Path("s"), until=until)
    assert passes_a_phase(launch, TRAIN) == passes


def test_the_windows_of_the_steps_to_come_are_those_of_each_phase() -> None:
    assert Accounts.target(accounts(), at(25, 80), 25, Position(0, 80)) == 80 + 5 * 4 + 70
    assert (TRAIN.windows(0, 100), TRAIN.windows(30, 20)) == (20 + 80 + 70, 0)
    assert TRAIN.tokens_of(0, 100) == 64 * (20 + 40) + 128 * 40 + 256 * 70
    assert TRAIN.milestones == {7, 10, 20, 30}


THEN, NOW = {"seq_len": 64, "global_batch": 2}, {"seq_len": 128, "global_batch": 2}


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ({}, THEN, None),
        (THEN, NOW, None),  # by hand, in a run without phases
        (THEN, {**NOW, "phase": "a"}, (True, "seq_len 64 -> 128")),
        ({**NOW, "phase": "a"}, {**NOW, "phase": "a"}, None),
        ({**NOW, "phase": "a"}, {**NOW, "phase": "b", "rope": 1}, (True, "rope none -> 1")),
        ({**NOW, "phase": "a"}, {**NOW, "phase": "b"}, (True, "")),
        (
            {**THEN, "phase": "a"},
            {**NOW, "phase": "a", "global_batch": 3},
            (False, "seq_len 64 -> 128; global_batch 2 -> 3"),
        ),
        ({**NOW, "phase": "a"}, THEN, (False, "seq_len 128 -> 64")),  # back before it
    ],
)
def test_a_phase_is_told_once_as_it_begins_and_whenever_its_settings_change(
    before: Any, now: Any, change: tuple[bool, str] | None
) -> None:
    assert phase_change(before, now) == change


@pytest.mark.parametrize(("until", "batch"), [(4, 64), (3, 2), (None, 2)])
def test_the_data_may_end_where_a_phase_with_larger_batches_would_begin(
    tmp_path: Path, until: int | None, batch: int
) -> None:
    pipeline = load_text(tmp_path, f"{MINIMAL}  phases: [{{name: wide, from: 4, global_batch: 64}}]\n")
    layout = pipeline.layout.run(pipeline.train.run)
    make_dir(layout.root)
    write_record(layout.launch, {"v": 1, "global_batch": 2, "until": until})
    assert _View(pipeline, layout).global_batch == batch


def test_the_curve_and_the_rows_of_a_schedule_are_those_of_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_run = "schedule: {name: wsd, warmup_steps: 2}\n  seq_len: 64\n  global_batch: 2\n  phases:\n"
    phases = "  - {name: wide, from: 4, global_batch: 4}\n  - {name: long, from: decay, seq_len: 128}\n"
    file = write_pipeline(tmp_path, f"{MINIMAL}  {of_run}{phases}")
    assert exit_code(["schedule", str(file), "--json"]) == 0
    rows = {row["step"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(rows) == set(range(1, 11)) - {4}
    assert rows[5] == {
        **{"step": 5, "lr": 3e-4, "phase": "wide", "global_batch": 4},
        **{"seq_len": 64, "tokens": 64 * (4 * 2 + 4)},
    }
    assert (rows[1]["lr"], rows[8]["phase"], rows[9]["phase"]) == (1.5e-4, "wide", "long")
    assert rows[10]["tokens"] == 64 * (8 + 16) + 2 * 4 * 128
    assert exit_code(["schedule", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["step", "rate", "batch", "seq_len", "tokens", "phase"]
    assert lines[-7].split()[0] == "0.0003" and lines[-2].strip("# ") == ""
    assert lines[-7].count("#") < lines[-2].count("#") <= 64


@pytest.mark.parametrize(
    ("phase", "warned", "told"),
    [
        ("global_batch: 64", [], []),
        (
            "seq_len: 4096, rope: {theta: 5e5}",
            [],
            ["phase a: a pass of one window of 4096 tokens takes about 96.0 MiB for activations"],
        ),
        ("seq_len: 4096", ["which the model has not seen"], ["2 x the beginning"]),
        (
            "seq_len: 4096, rope: {theta: 5e5}}, {name: b, from: 6, seq_len: 8192",
            [],
            ["2 x the beginning", "4 x the beginning"],
        ),
        (
            "seq_len: 8192, rope: {yarn: {factor: 2, original_seq_len: 2048}}",
            ["8192 tokens are more than 2 x 2048, which yarn's factor allows; raise it to 4"],
            ["4 x the beginning"],
        ),
    ],
)
def test_a_longer_context_is_told_with_its_numbers(
    tmp_path: Path, phase: str, warned: list[str], told: list[str]
) -> None:
    pipeline = load_text(tmp_path, f"{MINIMAL}  phases: [{{name: a, from: 4, {phase}}}]\n")
    notes_ = [note.text for note in notes(pipeline) if "warmup_steps" not in note.path]
    for found, parts in ((notes_, warned), ([*phase_memory(pipeline.train)], told)):
        assert len(found) == len(parts) and all(part in text for part, text in zip(parts, found, strict=True))


def test_an_average_that_never_begins_is_told(tmp_path: Path) -> None:
    for step, count in ((9, 0), (10, 1)):
        pipeline = load_text(tmp_path, f"{MINIMAL}  ema: {{from_step: {step}}}\n")
        assert sum(note.path == ("train", "ema", "from_step") for note in notes(pipeline)) == count


def test_the_builders_see_how_far_the_data_lasts_whatever_the_windows_lengths() -> None:
    plan = plan_of(segment(0, 100, seq_len=64), segment(1, 50, seq_len=256))
    for position, ahead_s in (
        (START, 500.0),
        (Position(0, 60), 440.0),
        (Position(1, 10), (32_000 - 8960) / 256),
    ):
        run = SimpleNamespace(finished=None, windows_per_s=1.0, plan=plan, low_water=position)
        sums = SimpleNamespace(sums=SimpleNamespace(tokens={"train": 32_000}))
        pipeline = SimpleNamespace(train=train_of(seq_len=64))
        state: Any = SimpleNamespace(
            datasets={"prose": SimpleNamespace(sources=sums)},
            runs=SimpleNamespace(holdings=[run]),
            context=SimpleNamespace(pipeline=pipeline),
        )
        assert parallelism._ahead_s(state) == ahead_s
