"""A longer context: the angles are transformers' own, q.k sees lags alone, a launch does what it is told."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from stoker.training.model.attention import frequencies, rotary_tables, rotate
from support.models import make_model
from support.trainer_run import SEQ_LEN, VOCAB, TrainerRun

if TYPE_CHECKING:
    from pathlib import Path

YARN = {"factor": 4.0, "original_seq_len": SEQ_LEN, "beta_fast": 2.0, "beta_slow": 0.25}


def test_the_frequencies_are_those_of_transformers() -> None:
    from transformers import LlamaConfig  # it takes seconds
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = 0
    for width, theta, original, factor, betas, scale in itertools.product(
        (16, 128), (100.0, 5e5), (4, 64, 8192), (1.0, 2.5, 40.0), ((32.0, 1.0), (8.0, 0.5)), (None, 0.7)
    ):
        yarn = {"factor": factor, "beta_fast": betas[0], "beta_slow": betas[1]}
        yarn |= {} if scale is None else {"attention_factor": scale}
        told = {
            **yarn,
            "original_max_position_embeddings": original,
            "rope_type": "yarn",
            "rope_theta": theta,
        }
        config = LlamaConfig(
            hidden_size=width, num_attention_heads=1, max_position_embeddings=original, rope_parameters=told
        )
        expected, expected_scale = ROPE_INIT_FUNCTIONS["yarn"](config)
        shape = make_model(rope={"yarn": {**yarn, "original_seq_len": original}}).shape
        assert shape.yarn is not None
        found = frequencies(width, theta, shape.yarn)
        assert torch.allclose(found, expected.double(), rtol=0, atol=1e-6)
        assert shape.yarn["attention_factor"] == pytest.approx(expected_scale)
        plain += torch.allclose(found, frequencies(width, theta), rtol=1e-9)
    assert plain < 72, "most differ from plain rotation"


@pytest.mark.parametrize(
    "rope", [{"theta": 5e5}, {"yarn": YARN}, {"yarn": {**YARN, "attention_factor": 2.0}}]
)
def test_a_query_and_a_key_meet_alike_at_a_lag_under_each_rope(rope: dict[str, Any]) -> None:
    shape = make_model(rope=rope).shape
    cos, sin = rotary_tables(128, 32, shape.theta, shape.yarn)
    q, k = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    queries, keys = rotate(q.expand(128, 32), cos, sin), rotate(k.expand(128, 32), cos, sin)
    for lag in (0, 1, 7, 100):
        products = (queries[lag:] * keys[: 128 - lag]).sum(dim=1)
        assert torch.allclose(products, products[0].expand_as(products), atol=1e-3), lag
    assert not torch.allclose(cos, rotary_tables(128, 32, 10000.0)[0], atol=1e-3)
    scale = (shape.yarn or {"attention_factor": 1.0})["attention_factor"]
    assert queries.norm(dim=1).tolist() == pytest.approx([float(q.norm()) * scale] * 128, rel=1e-5)


@pytest.fixture
def run(tmp_path: Path) -> TrainerRun:
    """A run whose plan has an entry of a later phase, with longer windows."""
    run = TrainerRun(tmp_path, steps=2)
    run.plan(16)
    run.plan(16, seq_len=4 * SEQ_LEN, end=True)
    return run


def later_heldout(run: TrainerRun) -> dict[str, Any]:
    windows = np.random.default_rng(5).integers(0, VOCAB, (3, 4 * SEQ_LEN + 1)).astype("<u2")
    file = run.layout.root / "heldout-long.bin"
    file.write_bytes(windows.tobytes())
    known = {"sha256": hashlib.sha256(windows.tobytes()).hexdigest(), "windows": 3, "seq_len": 4 * SEQ_LEN}
    return {"name": "long", "file": str(file), **known}


def test_a_phase_has_its_context_in_model_json_and_the_later_one_its_rope_and_windows(
    run: TrainerRun,
) -> None:
    with run.training() as by_hand:
        assert by_hand.model.shape.seq_len == 4 * SEQ_LEN, "a run without phases has the plan's longest"
    with run.training(phase="", until=2) as training:
        assert "rope" not in training.model.shape.body()
        assert (training.model.shape.seq_len, len(training.model.cos)) == (SEQ_LEN, 4 * SEQ_LEN)
        training.run()
    assert {*run.rows()[0]} == {"step", "timeline", "val_loss", "val_stderr"}
    changes = {"phase": "long", "seq_len": 4 * SEQ_LEN, "rope": {"yarn": YARN}, "steps": 4}
    with run.training(resume=run.checkpoints()[-1], heldouts=[later_heldout(run)], **changes) as training:
        assert training.model.shape.body()["rope"] == {"yarn": YARN}
        cos, _ = rotary_tables(4 * SEQ_LEN, 8, 10000.0, training.model.shape.yarn)
        assert torch.equal(training.model.cos, cos)
        training.run()
    last = run.rows()[-1]
    assert last["step"] == 4 and len(last["val_quarters"]["long"]) == 4
    assert np.mean(last["val_quarters"]["long"]) == pytest.approx(last["val_losses"]["long"], abs=1e-6)
    with run.training(resume=run.checkpoints()[-1], phase="longer", rope={"theta": 5e5}) as again:
        assert again.model.shape.rope == {"theta": 5e5}, "a second extension replaces the first"
    assert training.progress.val_loss == last["val_loss"] != last["val_losses"]["long"]
