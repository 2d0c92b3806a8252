"""The training step, and AdamW (Loshchilov and Hutter 2019) with decay on matrices only, and learning rates.

Not torch.optim, which loads a compiler on first use: a second of every launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stoker.store.errors import DataError
from stoker.training.device import Compute
from stoker.training.model import Model

EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """The running means of a parameter's gradient and of its square, both in the parameter's shape."""

    exp_avg: Tensor
    exp_avg_sq: Tensor


class AdamW:
    """Updates a model's parameters in place; its state is `steps` (updates made) and `moments` by name.

    All operations are element-wise: the same values give the same bits.
    """

    def __init__(self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._betas = betas
        self._weight_decay = weight_decay
        self.steps = 0
        self.moments = {
            name: Moments(torch.zeros_like(parameter), torch.zeros_like(parameter))
            for name, parameter in self._parameters.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Applies the gradients at this learning rate and clears them; norms (vectors) do not decay."""
        self.steps += 1
        first, second = self._betas
        size = rate / (1 - first**self.steps)  # corrects the bias of means that start at zero
        spread = math.sqrt(1 - second**self.steps)
        for name, parameter in self._parameters.items():
            gradient, moments = parameter.grad, self.moments[name]
            if gradient is None:
                continue
            if parameter.ndim >= 2:
                parameter.mul_(1 - rate * self._weight_decay)
            moments.exp_avg.lerp_(gradient, 1 - first)
            moments.exp_avg_sq.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            scale = moments.exp_avg_sq.sqrt().div_(spread).add_(EPSILON)
            parameter.addcdiv_(moments.exp_avg, scale, value=-size)
            parameter.grad = None


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scales gradients to a joint 2-norm of at most `limit` (0: no limit); returns the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit if limit > 0 else float("inf"))
    return float(norm)


@dataclass(frozen=True)
class Schedule:
    peak: float
    warmup_steps: int
    horizon: int  # the last step of the run, not of the launch
    min_ratio: float  # of the peak rate

    def rate(self, step: int) -> float:
        """Returns the rate of a step from 1 on: peak after warm-up, min_ratio * peak at the horizon."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.horizon - self.warmup_steps))
        ratio = self.min_ratio + (1.0 - self.min_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * ratio


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
