"""The loop around the steps: looking late at results changes nothing; a bad step ends the launch unmade."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.store.errors import NonFinite
from stoker.training.state import SavedState, load_tensors, read_json
from support.trainer_run import TrainerRun

SEALS = {"checkpoint": {"every_s": None, "every_steps": 4}, "deterministic": False}


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_tensors(SavedState(checkpoint, read_json(checkpoint / "checkpoint.json")), "")


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_looking_a_step_late_changes_no_bit_no_row_and_no_checkpoint(tmp_path: Path) -> None:
    runs = []
    for late in (False, True):
        run = TrainerRun(tmp_path / str(late))
        run.plan(104, end=True)  # a batch more than the run takes
        looks: list[tuple[int, int]] = []  # steps begun and steps made, whenever a step begins
        with run.training(**SEALS) as training:
            training.looks_late = late
            training.model.embedding.register_forward_pre_hook(
                lambda module, _, training=training, looks=looks: (
                    looks.append((training.optimizer.steps, training.progress.step))
                    if torch.is_grad_enabled()
                    else None
                )
            )
            assert training.run() == "steps"
        assert any(begun > made for begun, made in looks) == late
        runs.append(run)
    at_once, late_run = runs
    assert at_once.rows() == late_run.rows() and at_once.last_step() == 12
    names = [path.name for path in at_once.checkpoints()]
    assert names == [path.name for path in late_run.checkpoints()] and len(names) == 3
    for one, other in zip(at_once.checkpoints(), late_run.checkpoints(), strict=True):
        assert equal(tensors(one), tensors(other))


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_is_not_finite_ends_the_launch_with_the_state_before_it_sealed(
    tmp_path: Path, late: bool
) -> None:
    run = TrainerRun(tmp_path)
    run.plan(200)
    before: dict[str, torch.Tensor] = {}
    with run.training(**SEALS) as training:
        training.looks_late = late

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            if training.optimizer.steps == 6:  # in the seventh step
                before.update((name, each.clone()) for name, each in training.optimizer.tensors().items())
                return gradient * math.nan
            return gradient

        training.model.norm.weight.register_hook(spoil)
        with pytest.raises(NonFinite, match="step 7 was not applied") as end:
            training.run()
    assert training.optimizer.steps == 7 + late  # the step behind it was under way, and changed nothing
    assert (end.value.words["step"], end.value.words["position"]) == (7, "0,48")
    assert [path.name for path in run.checkpoints()] == ["step-000000004", "step-000000006"]
    sealed = tensors(run.checkpoints()[-1])
    assert equal(before, {name: sealed[name] for name in before})
    assert run.last_step() == 6


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_makes_the_bits_of_one_that_was_never_stopped(tmp_path: Path, optimizer: str) -> None:
    run = TrainerRun(tmp_path)
    run.plan(96)
    run.overrides = SEALS | {"optimizer": run.record("launch-1")["optimizer"] | {"name": optimizer}}
    with run.training() as training:
        training.run()
    first, *_, last = run.checkpoints()
    expected = tensors(last)
    assert any("momentum_buffer" in name for name in expected) == (optimizer == "muon")
    for path in run.checkpoints()[1:]:
        shutil.rmtree(path)
    with run.training(resume=first) as resumed:
        assert (resumed.progress.step, resumed.optimizer.steps) == (4, 4)
        resumed.run()
    assert equal(tensors(run.checkpoints()[-1]), expected)
