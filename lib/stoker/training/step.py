"""One optimizer step over a global batch, split into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stoker.store.errors import DataError
from stoker.training.device import Compute
from stoker.training.model import Model
from stoker.training.optimizer import AdamW


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scales gradients to a joint 2-norm of at most `limit` (0: no limit); returns the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit if limit > 0 else float("inf"))
    return float(norm)


@dataclass(frozen=True)
class StepResult:
    loss: float  # mean over the global batch, in nats per token
    grad_norm: float  # before clipping


def training_step(
    model: Model,
    optimizer: AdamW,
    parts: Sequence[Tensor],
    *,
    rate: float,
    clip: float,
    compute: Compute,
    before_update: Callable[[], None] = lambda: None,
) -> StepResult:
    """Adds up the gradients of micro-batches (b, T + 1), calls `before_update`, and makes one optimizer step.

    Raises DataError, before any change, where loss or gradients are not finite. The gradients add up to those
    of the mean over all targets of the global batch, for every split and any mix of T.
    """
    targets = sum(part.shape[0] * (part.shape[1] - 1) for part in parts)
    loss = torch.zeros((), dtype=torch.float64, device=parts[0].device)
    for part in parts:
        with compute.autocast():
            part_loss = model.loss_sum(part) / targets
        part_loss.backward()  # type: ignore[no-untyped-call]
        loss += part_loss.detach()
    grad_norm = clip_gradients(model.parameters(), clip)
    result = StepResult(loss.item(), grad_norm)
    if not (math.isfinite(result.loss) and math.isfinite(grad_norm)):
        raise DataError(f"the loss is {result.loss} and the gradient norm {grad_norm}")
    before_update()
    optimizer.step(rate)
    return result
