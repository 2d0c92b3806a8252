"""Recomputed blocks: the same bits from fewer kept tensors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from stoker.training.model.attention import DocumentMask
from stoker.training.model.transformer import Model
from support import models

SHAPE = replace(models.SHAPE, layers=3, width=32, tie_embeddings=True, qk_norm=True, document_mask=True)


def backward(*, recompute: bool, bf16: bool) -> tuple[list[Tensor], int]:
    """The loss and all gradients, and the bytes that were kept for the backward pass."""
    model = models.make_model(SHAPE)
    model.mask = DocumentMask(7, varlen=False)
    model.recompute = recompute
    windows = torch.randint(0, 50, (4, 33), generator=torch.Generator().manual_seed(2))
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bf16),
    ):
        loss = model.loss_sum(windows)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *(one for one in gradients if one is not None)], sum(kept.values())


@pytest.mark.parametrize("bf16", [False, True])
def test_a_recomputed_model_has_the_same_bits_and_keeps_less(bf16: bool) -> None:
    plain, all_bytes = backward(recompute=False, bf16=bf16)
    again, bytes_left = backward(recompute=True, bf16=bf16)
    assert len(plain) == len(again) == len(list(Model(SHAPE).parameters())) + 1
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert bytes_left < all_bytes / 3


def test_an_evaluation_computes_each_block_once() -> None:
    model = Model(SHAPE)
    calls: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    model.recompute = True
    windows = torch.zeros((1, 9), dtype=torch.long)
    with torch.inference_mode():
        model.loss_by_target(windows)
    assert len(calls) == 1
    model.loss_sum(windows).backward()  # type: ignore[no-untyped-call]
    assert len(calls) == 2  # a third begins, and ends at the last tensor that is needed


def test_a_trainer_loads_no_schema_and_a_step_with_recomputation_no_compiler() -> None:
    code = (
        "import sys, torch, stoker.training.trainer, stoker.training.load; "
        "from stoker.training.model.transformer import Model, Shape; "
        "model = Model(Shape(9, 8, 1, 8, 2, 2, 8, 1e4, 1e-5, True)); model.recompute = True; "
        "from stoker.training.steps.muon import Muon; from stoker.training.steps.step import Stepper; "
        "from stoker.training.steps.device import Compute; "
        "optimizer = Muon(model.named_parameters(), model.shape, betas=(0.9, 0.95), weight_decay=0.1); "
        "stepper = Stepper(model, optimizer, Compute(torch.device('cpu'), bf16=False), clip=1.0); "
        "stepper.begin([torch.zeros((1, 9), dtype=torch.long)], 0.1).result(); "
        "sys.exit(bool({'torch._dynamo', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
