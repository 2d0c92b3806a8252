"""Cross-entropy of a linear head over chunks of tokens: logits are never held whole.

Not torch's `linear_cross_entropy`: its first call loads a compiler, which costs each launch a second, and
it adds up the loss of bfloat16 states in bfloat16. This one also decides its chunk alike in every torch.

Shapes: N tokens, C width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code


def losses(states: Tensor, head: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Returns the float32 losses (N,) in nats of states (N, C), without gradients."""
    pairs = zip(torch.split(states, chunk), torch.split(targets, chunk), strict=True)
    return torch.cat(
        [F.cross_entropy(F.linear(rows, head).float(), ids, reduction="none") for rows, ids in pairs]
    )


class LossSum(torch.autograd.Function):
    """Sums the losses in float64; makes the gradients with them, so that no logits are made twice.

    This is how Liger's kernel does it (Hsu et al. 2024). Under autocast the products are of its dtype; sums,
    the softmax and the gradient of the head are float32.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, targets: Tensor, chunk: int) -> Tensor:
        """Returns the sum over states (N, C) of the loss of targets (N,), for a head (V, C)."""
        kind = states.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        weight = head.to(low)
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        states_grad, head_grad = torch.empty_like(states), torch.zeros_like(head)
        buffer = torch.empty((min(chunk, len(states)), len(head)), dtype=low, device=states.device)
        chunked = (torch.split(each, chunk) for each in (states, targets[:, None], states_grad))
        for part, ids, grad in zip(*chunked, strict=True):
            rows = part.to(low)
            logits = torch.mm(rows, weight.T, out=buffer[: len(rows)])
            logs = logits.float()
            torch.log_softmax(logs, dim=1, out=logs)
            total -= logs.gather(1, ids).sum()
            errors = logs.exp_()  # the gradient of the logits: softmax less one-hot
            errors.scatter_(1, ids, errors.gather(1, ids) - 1)
            errors = logits.copy_(errors)
            grad.copy_(errors @ weight)
            if low == head.dtype:
                head_grad.addmm_(errors.T, rows)
            else:
                head_grad.add_(errors.T @ rows)
        ctx.save_for_backward(states_grad, head_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scales the gradients made, in place: they are there for one backward pass."""
        states_grad, head_grad = ctx.saved_tensors
        return states_grad.mul_(grads[0]), head_grad.mul_(grads[0]), None, None


def loss_sum(states: Tensor, head: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Returns the float64 sum of `losses`, with gradients of states and head."""
    if not torch.is_grad_enabled():
        return losses(states, head, targets, chunk).double().sum()
    total: Tensor = LossSum.apply(states, head, targets, chunk)  # type: ignore[no-untyped-call]
    return total
