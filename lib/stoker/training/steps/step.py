"""Optimizer steps over global batches, each split into micro-batches; the host may look at a result later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stoker.training.model.transformer import Model
from stoker.training.steps.device import Compute
from stoker.training.steps.memory import not_repeated
from stoker.training.steps.optimizer import AdamW


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scales gradients to a joint 2-norm of at most `limit` (0: no limit); returns the norm before."""
    return torch.nn.utils.clip_grad_norm_(parameters, limit if limit > 0 else math.inf)


def add_gradients(model: Model, parts: Sequence[Tensor], compute: Compute) -> Tensor:
    """Adds up the gradients of micro-batches (b, T + 1); returns the mean loss of all targets, in float64.

    The gradients are those of that mean, for every split and any mix of T. Nothing but them changes: where
    memory ran out in between, they are dropped (`model.zero_grad()`) and made again of smaller parts.
    """
    targets = sum(part.shape[0] * (part.shape[1] - 1) for part in parts)
    loss = torch.zeros((), dtype=torch.float64, device=parts[0].device)
    for part in parts:
        with compute.autocast():
            part_loss = model.loss_sum(part) / targets
        part_loss.backward()  # type: ignore[no-untyped-call]
        loss += part_loss.detach()
    return loss


@dataclass(frozen=True)
class StepResult:
    loss: float  # mean over the global batch, in nats per token
    grad_norm: float  # before clipping

    @property
    def is_finite(self) -> bool:
        """Whether the step was applied."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Begun:
    """A step that the device may still be making; its loss and norm are on their way to the host."""

    def __init__(self, loss: Tensor, norm: Tensor) -> None:
        figures = torch.stack((loss, norm.double()))
        self._figures, self._arrived = figures, None
        if figures.is_cuda:
            # Not .item(), which would wait for all that is queued by then, the next step too.
            self._figures = torch.empty(2, dtype=torch.float64, pin_memory=True)
            self._figures.copy_(figures, non_blocking=True)
            self._arrived = torch.cuda.current_stream(figures.device).record_event()

    def result(self) -> StepResult:
        """Returns the result; waits for it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, grad_norm = self._figures.tolist()
        return StepResult(loss, grad_norm)


class Stepper:
    """Makes the steps of a launch.

    A step whose loss or gradients are not finite is not applied, nor is any after it, by a flag on the
    device that stays up: so the host may look at a step's result when the next one is under way.
    """

    def __init__(
        self,
        model: Model,
        optimizer: AdamW,
        compute: Compute,
        *,
        clip: float,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_update` is called between the gradients and the update of parameters."""
        self._model, self._optimizer, self._compute = model, optimizer, compute
        self._clip, self._before_update = clip, before_update
        self._found_inf = torch.zeros((), device=compute.device)

    def begin(self, parts: Sequence[Tensor], rate: float) -> Begun:
        """Begins the step of a global batch, given as micro-batches (b, T + 1), at a learning rate.

        Where memory runs out before the update, nothing but gradients has changed; in the update: NoMemory.
        """
        loss = add_gradients(self._model, parts, self._compute)
        norm = clip_gradients(self._model.parameters(), self._clip)
        is_finite = torch.isfinite(loss) & torch.isfinite(norm)
        self._found_inf = torch.where(is_finite, self._found_inf, 1.0)
        begun = Begun(loss, norm)  # it takes memory, too: after the update it would be too late to repeat
        with not_repeated("the optimizer's step"):
            self._before_update()
            self._optimizer.step(rate, self._found_inf)
        return begun
