"""Muon: torch's own on each matrix by itself, AdamW on all that is no matrix of a block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stoker.training.model.transformer import Model
from stoker.training.steps.muon import Muon, momentum_at
from stoker.training.steps.optimizer import AdamW
from support.models import make_model

HEIGHTS = {"qkv": (16, 8, 8), "gate_up": (24, 24)}


def make() -> tuple[Model, Muon]:
    model = make_model(vocab_size=40, seq_len=12, qk_norm=True)
    return model, Muon(model.named_parameters(), model.shape, betas=(0.9, 0.95), weight_decay=0.1)


def unfused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with each fused matrix in its parts."""
    found = {}
    for name, tensor in tensors.items():
        heights = next((heights for part, heights in HEIGHTS.items() if part in name), (len(tensor),))
        found |= {f"{name} {i}": part for i, part in enumerate(torch.split(tensor.detach(), heights))}
    return found


def test_matrices_of_blocks_get_torchs_muon_each_by_itself_and_the_rest_adamw() -> None:
    model, optimizer = make()
    copies = {
        name: torch.nn.Parameter(each.clone())
        for name, each in unfused(dict(model.named_parameters())).items()
    }
    matrices = {name for name, each in copies.items() if name.startswith("blocks.") and each.ndim == 2}
    assert len(matrices) == 2 * (3 + 1 + 2 + 1)
    theirs = torch.optim.Muon([copies[name] for name in sorted(matrices)], adjust_lr_fn="match_rms_adamw")
    rest = AdamW(
        ((name, each) for name, each in copies.items() if name not in matrices),
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    for step in range(1, 4):
        windows = torch.randint(0, 40, (4, 13), generator=torch.Generator().manual_seed(step))
        model.loss_sum(windows).backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        for name, gradient in unfused(gradients).items():
            copies[name].grad = gradient.clone()
        theirs.param_groups[0] |= {"lr": 0.01 / step, "momentum": 0.85 + 0.1 * step / 300}
        theirs.step()
        rest.step(0.01 / step)
        optimizer.step(0.01 / step)
    for name, mine in unfused(dict(model.named_parameters())).items():
        assert torch.equal(mine, copies[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_its_state_names_a_momentum_for_each_matrix_of_a_block_and_adamws_means_for_the_rest() -> None:
    model, optimizer = make()
    kinds = dict[str, set[str]]()
    for name in optimizer.tensors():
        parameter, _, kind = name.rpartition(".")
        kinds.setdefault(parameter, set()).add(kind)
    assert kinds.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        is_matrix_of_block = name.startswith("blocks.") and parameter.ndim == 2
        assert kinds[name] == ({"momentum_buffer"} if is_matrix_of_block else {"exp_avg", "exp_avg_sq"}), name


def test_the_momentum_rises_over_the_first_steps_of_the_run() -> None:
    assert [momentum_at(step) for step in (150, 300, 10**6)] == pytest.approx([0.9, 0.95, 0.95])
