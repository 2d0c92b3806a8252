"""The average of the weights: its sum, its place in checkpoints, and that training never reads it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.checkpoints.proof import prove_checkpoint
from stoker.store.errors import NonFinite
from stoker.training.evaluate import evaluate
from stoker.training.state import SavedState, load_tensors, read_json
from support.trainer_run import TrainerRun

EMA = {"decay": 0.75, "every": 2, "from_step": 5}
EACH_STEP = {"checkpoint": {"every_s": None, "every_steps": 1}}
Tensors = dict[str, torch.Tensor]


def tensors(checkpoint: Path, stem: str) -> Tensors:
    return load_tensors(SavedState(checkpoint, read_json(checkpoint / "checkpoint.json")), f"{stem}-")


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def trained(root: Path, *, late: bool = False, **overrides: Any) -> TrainerRun:
    """A run trained to its end, with a checkpoint of each step."""
    run = TrainerRun(root)
    run.plan(104)
    train(run, late=late, **overrides)
    return run


def train(run: TrainerRun, *, late: bool = False, **overrides: Any) -> None:
    with run.training(**EACH_STEP | overrides) as training:
        training.looks_late = late
        training.run()


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> TrainerRun:
    return trained(tmp_path_factory.mktemp("averaged"), ema=EMA)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TrainerRun:
    return trained(tmp_path_factory.mktemp("plain"))


def test_the_average_is_the_closed_sum_over_the_weights_from_a_copy_on(averaged: TrainerRun) -> None:
    by_step = {int(path.name[-9:]): path for path in averaged.checkpoints()}
    assert [step for step, path in by_step.items() if not tensors(path, "ema")] == [1, 2, 3, 4]
    assert equal(tensors(by_step[5], "ema"), tensors(by_step[5], "model"))
    weighed = {5: 0.75**3, 7: 0.25 * 0.75**2, 9: 0.25 * 0.75, 11: 0.25}
    weights = {step: tensors(by_step[step], "model") for step in weighed}
    for name, found in tensors(by_step[12], "ema").items():
        expected = sum(share * weights[step][name].double() for step, share in weighed.items())
        assert torch.allclose(found.double(), torch.as_tensor(expected), rtol=0, atol=1e-6)
        assert found.dtype == torch.float32
    assert len(tensors(by_step[12], "ema")) == len(tensors(by_step[12], "model"))


def test_training_makes_the_same_bits_without_an_average_and_evaluates_one_beside_the_weights(
    averaged: TrainerRun, plain: TrainerRun
) -> None:
    rows = averaged.rows()
    losses = {row["step"]: row.pop("ema_val_loss", None) for row in rows if "val_loss" in row}
    assert rows == plain.rows() and [step for step, loss in losses.items() if loss] == [5, 10, 12]
    for one, other in zip(averaged.checkpoints(), plain.checkpoints(), strict=True):
        assert all(equal(tensors(one, stem), tensors(other, stem)) for stem in ("model", "optimizer"))
        assert not tensors(other, "ema")
    last = averaged.checkpoints()[-1]
    with averaged.training(resume=last, ema=EMA) as training:
        training.model.load_state_dict(tensors(last, "ema"))
        assert training.heldout is not None
        found = evaluate(training.model, training.heldout, compute=training.compute, micro_batch=2)
    assert found is not None and losses[12] == pytest.approx(found.loss, abs=1e-6)


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_ends_and_resumes_has_the_average_of_one_never_stopped(
    averaged: TrainerRun, tmp_path: Path, late: bool
) -> None:
    run = trained(tmp_path, ema=EMA, until=3, late=late)
    for until in (6, 12):
        train(run, resume=run.checkpoints()[-1], ema=EMA, until=until, late=late)
    assert run.rows() == averaged.rows()
    for one, other in zip(run.checkpoints(), averaged.checkpoints(), strict=True):
        assert all(equal(tensors(one, stem), tensors(other, stem)) for stem in ("model", "optimizer", "ema"))


def test_an_average_that_was_off_begins_anew_with_the_weights_then(plain: TrainerRun, tmp_path: Path) -> None:
    run = trained(tmp_path, ema=EMA, until=7)
    for until, ema in ((9, None), (10, EMA), (12, EMA)):
        train(run, resume=run.checkpoints()[-1], ema=ema, until=until)
    seventh, eighth, ninth, tenth, *_, last = run.checkpoints()[6:]
    assert tensors(seventh, "ema") and not tensors(eighth, "ema") and not tensors(ninth, "ema")
    assert equal(tensors(tenth, "ema"), tensors(ninth, "model"))  # the tenth step changes it not
    assert equal(tensors(last, "model"), tensors(plain.checkpoints()[-1], "model"))
    with run.training(resume=tenth, ema=EMA | {"from_step": 11}) as training:
        assert training.average is not None and not training.average.tensors(10)
        assert equal(training.average.tensors(11), tensors(tenth, "model"))


@pytest.mark.parametrize("late", [False, True])
def test_the_state_before_a_step_that_is_not_finite_has_the_average_before_it(
    averaged: TrainerRun, tmp_path: Path, late: bool
) -> None:
    run = TrainerRun(tmp_path)
    run.plan(104)
    with run.training(ema=EMA) as training:
        training.looks_late = late
        training.model.norm.weight.register_hook(
            lambda gradient: gradient * (math.nan if training.optimizer.steps == 8 else 1)
        )
        with pytest.raises(NonFinite, match="step 9 was not applied"):
            training.run()
    (sealed,) = run.checkpoints()
    assert equal(tensors(sealed, "ema"), tensors(averaged.checkpoints()[7], "ema"))


def test_the_memory_of_a_save_is_taken_with_the_average_that_begins_later(tmp_path: Path) -> None:
    run, prepared = TrainerRun(tmp_path), list[str]()
    run.plan(16)
    with run.training(ema=EMA, until=2) as training:
        training.saver.prepare = lambda files, body: prepared.extend(name for name, _ in files)  # type: ignore[method-assign]
        training.run()
    assert "ema-00001.safetensors" in prepared and not tensors(run.checkpoints()[-1], "ema")


def test_the_windows_of_the_average_are_progress_after_those_of_the_weights(tmp_path: Path) -> None:
    run, done = TrainerRun(tmp_path, steps=1), list[object]()
    run.plan(8)
    with run.training(ema=EMA | {"from_step": 0}) as training:
        # Each word: the real one leaves out those that come too soon after another.
        training.protocol.tell = lambda **words: done.append(words.get("done"))  # type: ignore[method-assign]
        training.run()
    assert [each for each in done if each is not None] == [0, 6] * 2  # before the step, and after it


def test_a_checkpoint_that_lacks_the_file_of_its_average_is_not_whole(tmp_path: Path) -> None:
    run = trained(tmp_path, ema=EMA | {"from_step": 0}, steps=1)
    (sealed,) = run.checkpoints()
    assert prove_checkpoint(sealed).verdict == "proven"
    (sealed / "ema-00001.safetensors").unlink()
    assert prove_checkpoint(sealed).verdict == "invalid"
