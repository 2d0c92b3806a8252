"""Where a training seals and ends besides its last step: where a decay begins, and where no gain is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.supervise.run.early_stop import Standstill, read_evaluations, standstill
from support.trainer_run import TrainerRun


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    run = TrainerRun(tmp_path)
    run.plan(40, 80)
    return run


def train(run: TrainerRun, resume: Path | None = None, **changes: Any) -> str:
    """Trains in this process; returns why it ended."""
    with run.training(resume=resume, **changes) as training:
        return training.run()


def test_the_step_where_wsd_begins_to_decay_is_sealed_though_none_is_due_and_one_in_flight(
    run: TrainerRun,
) -> None:
    schedule = {"name": "wsd", "warmup_steps": 3, "min_ratio": 0.1, "decay": 0.25, "decay_begins": 9}
    seals = {"every_s": None, "every_steps": 8, "busy": "skip"}
    assert train(run, schedule=schedule, checkpoint=seals) == "steps"
    assert [int(path.name[-9:]) for path in run.checkpoints()] == [8, 9, 12]
    rates = {row["step"]: row["lr"] for row in run.rows() if "lr" in row}
    assert rates[4] == rates[9] == 3e-3 > rates[10] > rates[12] == pytest.approx(3e-4)


def test_the_last_checkpoint_has_its_own_evaluation_and_a_resumed_run_the_newest_one(run: TrainerRun) -> None:
    seals = {"every_s": None, "every_steps": 4, "busy": "wait"}
    assert train(run, checkpoint=seals) == "steps"
    body, evaluated = run.checkpoints()[-1] / "checkpoint.json", run.rows()[-1]
    assert (evaluated["step"], json.loads(body.read_bytes())["val_loss"]) == (12, evaluated["val_loss"])
    before = run.checkpoints()[0]  # sealed at step 4; its evaluation comes after
    row = {"step": 4, "timeline": 0, "val_loss": 1.5}
    lines = run.layout.metrics.read_text().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if json.loads(line)["step"] > 4)
    run.layout.metrics.write_text("".join([*lines[:at], json.dumps(row) + "\n"]))
    with run.training(resume=before) as resumed:
        assert resumed.progress.val_loss == 1.5


LOSSES = [(4.0, 0.1), (3.0, 0.1), (2.95, 0.1), (2.85, 0.1), (2.8, 0.01), (None, None), (2.8, 0.1)]


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (0, Standstill(0, None, 0)),
        (1, Standstill(0, 4.0, 0)),
        (3, Standstill(1, 3.0, 10)),  # within the standard error
        (4, Standstill(0, 2.85, 30)),  # two small gains add up
        (5, Standstill(0, 2.8, 40)),
        (7, Standstill(2, 2.8, 40)),  # a loss that is not finite is no gain
    ],
)
def test_a_gain_is_more_than_the_standard_error_under_the_best(count: int, found: Standstill) -> None:
    assert standstill({10 * place: one for place, one in enumerate(LOSSES[:count])}) == found
    assert (found.ends(2), found.ends(None)) == (found.evaluations >= 2, False)


def test_only_the_evaluations_of_the_history_up_to_the_step_count(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = [(0, 0, 4.0), (10, 0, 3.0), (20, 0, 2.0), (20, 1, 2.5), (30, 1, 1.0)]
    text = [f'{{"step":{s},"timeline":{t},"val_loss":{loss},"val_stderr":0.1}}\n' for s, t, loss in rows]
    log.write_text("".join(text) + '{"step":20,"timeline":1,"loss":9.0}\n{"step":5,"val_loss":')
    found = read_evaluations(log, [(1, None), (0, 15)], 20)
    assert found == {0: (4.0, 0.1), 10: (3.0, 0.1), 20: (2.5, 0.1)}
    assert read_evaluations(tmp_path / "none", [(0, None)], 20) == {}


def test_a_run_without_gains_ends_early_sealed_and_a_resumed_one_at_the_same_step(run: TrainerRun) -> None:
    still = {"name": "adamw", "lr": 1e-9, "betas": [0.9, 0.95], "weight_decay": 0.0, "clip": 1.0}
    changes = {"optimizer": still, "evaluate": {"every_steps": 2, "tokens": 96, "patience": 3}}
    assert train(run, **changes) == "early_stop"
    (sealed,) = run.checkpoints()
    rows = run.rows()
    assert sealed.name == "step-000000006" and rows[-1]["step"] == 6 and "val_loss" in rows[-1]
    assert train(run, sealed, **changes) == "early_stop"  # it has nothing left to make
    changes["evaluate"] = {"every_steps": 2, "tokens": 96, "patience": 4}
    assert train(run, sealed, **changes) == "early_stop"
    assert [path.name[-2:] for path in run.checkpoints()] == ["06", "08"]
    assert train(run, sealed, **changes, until=7) == "until"
    cut = run.checkpoints()[1]
    assert train(run, cut, **changes) == "early_stop" and run.checkpoints()[-1].name[-2:] == "08"
