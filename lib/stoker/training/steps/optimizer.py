"""AdamW (Loshchilov and Hutter 2019) by torch's fused kernel.

The kernel is called directly: `torch.optim` loads a compiler on first use, a second of every launch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class AdamW:
    """Decays matrices and no vectors. All operations are element-wise: the same values give the same bits."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        self._parameters = dict(parameters)
        self._betas = betas
        self._weight_decay = weight_decay
        self._means = {name: torch.zeros_like(each).detach() for name, each in self._parameters.items()}
        self._squares = {name: torch.zeros_like(each).detach() for name, each in self._parameters.items()}
        self.steps = 0  # updates begun, those that `found_inf` made void among them

    def tensors(self) -> dict[str, Tensor]:
        """Returns the state that a checkpoint holds besides `steps`: by parameter and kind of state.

        <parameter>.exp_avg and .exp_avg_sq: the running means of its gradient and squared gradient.
        """
        means = {f"{name}.exp_avg": mean for name, mean in self._means.items()}
        return means | {f"{name}.exp_avg_sq": square for name, square in self._squares.items()}

    @torch.no_grad()
    def step(self, rate: float, found_inf: Tensor | None = None) -> None:
        """Applies the gradients at this learning rate and clears them.

        Where `found_inf`, a float32 scalar on the device, is 1, no parameter and no state changes; the host
        need not know.
        """
        self.steps += 1
        moved = {name: each for name, each in self._parameters.items() if each.grad is not None}
        self._update([name for name in moved if moved[name].ndim >= 2], rate, self._weight_decay, found_inf)
        self._update([name for name in moved if moved[name].ndim < 2], rate, 0.0, found_inf)
        for parameter in moved.values():
            parameter.grad = None

    def _update(self, names: list[str], rate: float, decay: float, found_inf: Tensor | None) -> None:
        if not names:
            return
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        count = torch.full((), float(self.steps), device=parameters[0].device)
        torch._fused_adamw_(  # what torch.optim.AdamW(fused=True) calls
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self._means[name] for name in names],
            [self._squares[name] for name in names],
            [],
            [count] * len(names),
            lr=rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )
