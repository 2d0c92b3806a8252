"""The held-out loss: what it is of, and what becomes of one that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.store.errors import DataError, NonFinite
from stoker.store.record import write_record
from stoker.training.evaluate import evaluate, open_heldout
from stoker.training.launch import Heldout
from stoker.training.model.transformer import Model
from stoker.training.steps.device import Compute
from support.models import make_model
from support.trainer_run import SEQ_LEN, VOCAB, TrainerRun

CPU = Compute(torch.device("cpu"), bf16=False)


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    run = TrainerRun(tmp_path)
    run.plan(40, 40)
    return run


def held(run: TrainerRun) -> Heldout:
    record = run.record("launch-1")["heldout"]
    return Heldout(**{**record, "file": Path(record["file"])})


def test_the_held_out_loss_is_the_mean_over_windows_with_its_standard_error(run: TrainerRun) -> None:
    windows, model = open_heldout(held(run), "uint16"), make_model(vocab_size=VOCAB)
    found = evaluate(model, windows, compute=CPU, micro_batch=4)
    with torch.no_grad():
        each = [
            model.loss_sum(torch.from_numpy(row[None].astype(np.int64))).item() / SEQ_LEN for row in windows
        ]
    assert found is not None
    assert found.loss == pytest.approx(np.mean(each), abs=1e-5)
    assert found.stderr == pytest.approx(np.std(each, ddof=1) / np.sqrt(6), rel=1e-3)
    quarters = [[loss_at(model, row)[first : first + 4].mean() for row in windows] for first in (0, 4, 8, 12)]
    assert found.quarters == pytest.approx(np.mean(quarters, axis=1), abs=1e-5)
    assert np.mean(found.quarters) == pytest.approx(found.loss, abs=1e-6)
    assert evaluate(model, windows, compute=CPU, micro_batch=4, go_on=lambda windows: False) is None


def loss_at(model: Model, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The losses of a window's targets, of all logits at once."""
    ids = torch.from_numpy(row[None].astype(np.int64))
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:], reduction="none").numpy()


def test_a_held_out_loss_that_is_not_finite_is_a_row_without_it_and_a_reason(run: TrainerRun) -> None:
    wild = {"name": "adamw", "lr": 1e30, "betas": [0.9, 0.95], "weight_decay": 0.0, "clip": None}
    changes = {"optimizer": wild, "evaluate": {"every_steps": 1, "tokens": 96}, "deterministic": False}
    with (
        run.training(**changes) as training,
        pytest.raises(NonFinite, match="the held-out loss at step 1 is"),
    ):
        training.run()
    assert run.checkpoints() == []
    assert run.rows()[-1] == {"step": 1, "timeline": 0, "val_loss": None, "val_stderr": None}


def test_held_out_windows_that_changed_are_refused(run: TrainerRun) -> None:
    record = held(run)
    raw = bytearray(record.file.read_bytes())
    raw[7] ^= 1
    record.file.write_bytes(raw)
    with pytest.raises(DataError, match="held-out data changed"):
        open_heldout(record, "uint16")


def test_the_unigram_loss_is_that_of_the_training_frequencies(
    run: TrainerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from demolib.baseline import unigram_loss

    write_record(run.layout.launch, run.record("launch-1"))
    tokens = np.concatenate([np.fromfile(file, "<u2") for file in run.shards.glob("*/train-*.bin")])
    counts = np.bincount(tokens, minlength=VOCAB) + 1
    targets = np.fromfile(run.layout.heldout, "<u2").reshape(6, SEQ_LEN + 1)[:, 1:]
    expected = -np.log(counts[targets] / counts.sum()).mean()
    assert unigram_loss(run.layout.root) == pytest.approx(expected)
