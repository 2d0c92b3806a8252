"""The training step: gradients of a global batch, micro-batch by micro-batch, then one update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stoker.store.errors import DataError
from stoker.training.device import Compute
from stoker.training.model import Model
from stoker.training.optimizer import AdamW, clip_gradients


@dataclass(frozen=True)
class StepResult:
    """Mean loss over the global batch (nats a token) and the gradients' norm before clipping."""

    loss: float
    grad_norm: float


def training_step(
    model: Model,
    optimizer: AdamW,
    windows: Tensor,
    *,
    micro_batch: int,
    rate: float,
    clip: float,
    compute: Compute,
) -> StepResult:
    """One optimizer step over windows (B, T + 1); DataError, before anything changes, when it is not finite.

    Gradients of micro-batches add up to those of the mean over all B x T targets, however the batch is split.
    """
    targets = windows.shape[0] * (windows.shape[1] - 1)
    loss = torch.zeros((), dtype=torch.float64, device=windows.device)
    for part in torch.split(windows, micro_batch):
        with compute.autocast():
            part_loss = model.loss_sum(part) / targets
        part_loss.backward()  # type: ignore[no-untyped-call]
        loss += part_loss.detach()
    grad_norm = clip_gradients(model.parameters(), clip)
    result = StepResult(loss.item(), grad_norm)
    if not (math.isfinite(result.loss) and math.isfinite(grad_norm)):
        raise DataError(f"the loss is {result.loss} and the gradient norm {grad_norm}")
    optimizer.step(rate)
    return result
