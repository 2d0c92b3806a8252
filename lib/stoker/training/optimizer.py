"""AdamW (Loshchilov and Hutter 2019) with decay on matrices only.

Not torch.optim, which loads a compiler on first use: a second of every launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
