"""Warnings with figures: text learned by heart, and too few or too many tokens for the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.config.checks import notes, unusual_tokens
from stoker.kit.process import ProcessId
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.memorization import (
    MOST_STEPS,
    STANDARD_ERRORS,
    TAIL_BYTES,
    Gap,
    newest_gap,
    read_tail,
)
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stokerd.supervision.keep import _note_tokens
from stokerd.supervision.run import Run
from stokerd.supervision.trainer.control import TrainerControl
from support.config_files import MINIMAL, load_text
from support.plan_data import plan_of, segment


def rows(first: int, last: int, loss: float, **more: Any) -> list[dict[str, Any]]:
    """Training rows around a loss, of timeline 0."""
    return [
        {"step": step, "timeline": 0, "loss": loss + 0.01 * (-1) ** step, **more}
        for step in range(first, last + 1)
    ]


def heldout(step: int, loss: float | None, stderr: float | None = 0.02, timeline: int = 0) -> dict[str, Any]:
    return {"step": step, "timeline": timeline, "val_loss": loss, "val_stderr": stderr}


def test_the_gap_is_of_the_last_evaluation_over_the_steps_before_it() -> None:
    log = [*rows(1, 20, 4.0), heldout(20, 4.1), *rows(21, 40, 3.0), heldout(40, 3.5)]
    gap = newest_gap([*log, *rows(21, 60, 9.0, timeline=1), *rows(41, 45, 1.0)], 0)
    assert gap is not None and (gap.step, gap.val_loss) == (40, 3.5)
    assert gap.train_loss == pytest.approx(3.0) and gap.nats == pytest.approx(0.5)
    assert gap.stderr == pytest.approx((0.02**2 + 0.01**2 / 19) ** 0.5, rel=0.01)
    older = newest_gap([*rows(1, 50, 9.0), *rows(51, 50 + MOST_STEPS, 3.0), heldout(50 + MOST_STEPS, 3.5)], 0)
    assert older is not None and older.train_loss == pytest.approx(3.0)


@pytest.mark.parametrize(
    "log",
    [
        [],
        rows(1, 20, 4.0),
        [*rows(1, 5, 4.0), heldout(5, 5.0)],
        [*rows(1, 20, 4.0), heldout(20, None)],
        [*rows(1, 20, 4.0), heldout(20, 5.0, 0.0)],  # one window has no error to measure by
        [*rows(1, 20, 4.0), heldout(20, 5.0, timeline=1)],
    ],
)
def test_too_few_rows_and_losses_that_are_not_finite_have_no_gap(log: list[dict[str, Any]]) -> None:
    assert newest_gap(log, 0) is None


def test_only_a_gap_of_several_standard_errors_after_the_first_epoch_is_suspected() -> None:
    limit = Gap(10, 3.0, 3.0 + STANDARD_ERRORS * 0.1, 0.1)
    far, near = (
        replace(limit, val_loss=limit.val_loss + 0.001),
        replace(limit, val_loss=limit.val_loss - 0.001),
    )
    assert far.is_suspected(epoch=1, told=0.0)
    assert not near.is_suspected(epoch=1, told=0.0)
    assert not far.is_suspected(epoch=0, told=0.0)
    assert not far.is_suspected(epoch=1, told=far.nats)
    assert replace(far, val_loss=4.0).is_suspected(epoch=1, told=far.nats)


def test_the_newest_rows_are_read_from_the_logs_end(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    assert read_tail(log) == []
    row = json.dumps(rows(1, 1, 4.0)[0] | {"pad": "x" * 1000}).encode() + b"\n"
    log.write_bytes(row * 2000 + json.dumps(heldout(9, 3.0)).encode() + b'\n{"step":')
    found = read_tail(log)
    assert found[-1] == heldout(9, 3.0)
    assert TAIL_BYTES // len(row) - 2 < len(found) <= TAIL_BYTES // len(row) + 1


def test_it_is_told_at_an_evaluation_once_and_again_when_it_is_worse(tmp_path: Path) -> None:
    log, told = tmp_path / "log" / "metrics.jsonl", list[dict[str, Any]]()
    log.parent.mkdir()
    plan = plan_of(segment(0, 100), replace(segment(1, 100), epoch=1))
    layout = SimpleNamespace(run=lambda name: SimpleNamespace(metrics=log))
    pipeline = SimpleNamespace(layout=layout, train=SimpleNamespace(run="main"))
    record = SimpleNamespace(record=lambda word, *_, **words: told.append({"event": word, **words}))
    accounts: Any = SimpleNamespace(planner=SimpleNamespace(plan=plan))
    context = SimpleNamespace(pipeline=pipeline, events=record)
    parts = cast(Any, (context, RunState(Phase.CLEANING, 0.0), None, None, None, accounts, None, None, None))
    control = TrainerControl(Run(*parts))
    launch = Launch("l1", 0, None, 0, Path("x.sock"))
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView("l1", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)

    def evaluated(step: int, loss: float, entry: int) -> None:
        with log.open("a") as file:
            file.writelines(
                json.dumps(row) + "\n" for row in [*rows(step - 19, step, 3.0), heldout(step, loss)]
            )
        view = replace(trainer.view, step=step, val_loss=loss, position=(entry, 8))
        control._measure(trainer, replace(trainer, view=view))
        control._measure(replace(trainer, view=view), replace(trainer, view=view))

    evaluated(20, 4.0, 0)
    assert told == []
    for step, loss in ((40, 4.0), (60, 4.1), (80, 4.8)):
        evaluated(step, loss, 1)
    assert [(one["event"], one["step"], one["epoch"]) for one in told] == [
        ("memorization_suspected", 40, 2),
        ("memorization_suspected", 80, 2),
    ]
    assert (told[0]["train_loss"], told[0]["val_loss"]) == (3.0, 4.0)
    assert "50 standard errors" in told[0]["message"] and "in epoch 2" in told[0]["message"]


LARGE = "{layers: 12, width: 768, heads: 12, ffn: 2048}"  # 109.5 M with a vocabulary of 32,000


@pytest.mark.parametrize(
    ("model", "tokens", "told"),
    [
        (LARGE, "400M", "3.65 for each of 109.5 M parameters, where about 20 are usual"),
        (LARGE, "600M", ""),
        (LARGE, "20B", ""),
        (LARGE, "30B", "274 for each"),
        ("tiny", "30B", ""),
    ],
)
def test_tokens_far_from_twenty_a_parameter_are_told_with_figures(
    tmp_path: Path, model: str, tokens: str, told: str
) -> None:
    text = MINIMAL.replace("steps: 10", f"tokens: {tokens}").replace("model: tiny", f"model: {model}")
    pipeline, recorded = load_text(tmp_path, text), list[tuple[str, Any]]()
    events = SimpleNamespace(record=lambda word, *_, **words: recorded.append((word, words["message"])))
    found = unusual_tokens(pipeline.train, 32000)
    assert told in found and bool(told) == bool(found)
    _note_tokens(cast(Any, SimpleNamespace(pipeline=pipeline, events=events)), 32000)
    assert recorded == ([("tokens_per_parameter_unusual", found)] if told else [])
    assert [note.text for note in notes(pipeline) if note.path == ("train", "tokens")] == [found] * bool(told)
