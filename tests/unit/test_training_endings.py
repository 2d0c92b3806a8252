"""Where a training seals and ends besides its last step: at the start of a decay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.handover import Sealer
from stoker.store.record import write_record
from stoker.training.launch import read_launch
from stoker.training.load import load
from stoker.training.protocol import Protocol, Stop
from support.trainer_run import TrainerRun


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    run = TrainerRun(tmp_path)
    run.plan(40, 80)
    return run


def train(run: TrainerRun, resume: Path | None = None, **changes: Any) -> str:
    """Trains in this process; returns why it ended."""
    write_record(run.layout.launch, run.record("launch-1") | changes)
    environ = {"STOKER_RUN_DIR": str(run.layout.root), "STOKER_RESUME_FROM": str(resume or "")}
    sealer = Sealer(run.layout.checkpoints, "launch-1")
    try:
        return load(read_launch(environ), Protocol("", "launch-1"), Stop(), sealer).run()
    finally:
        sealer.end()


def test_the_step_where_wsd_begins_to_decay_is_sealed_though_none_is_due_and_one_in_flight(
    run: TrainerRun,
) -> None:
    schedule = {"name": "wsd", "warmup_steps": 3, "min_ratio": 0.1, "decay": 0.25, "decay_begins": 9}
    seals = {"every_s": None, "every_steps": 8, "busy": "skip"}
    assert train(run, schedule=schedule, checkpoint=seals) == "steps"
    assert [int(path.name[-9:]) for path in run.checkpoints()] == [8, 9, 12]
    rates = {row["step"]: row["lr"] for row in run.rows() if "lr" in row}
    assert rates[4] == rates[9] == 3e-3 > rates[10] > rates[12] == pytest.approx(3e-4)
