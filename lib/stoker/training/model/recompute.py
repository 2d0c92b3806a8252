"""Trades time for memory: a block's activations are made again in the backward pass instead of kept.

Chen et al. 2016. Not torch.utils.checkpoint, which loads a compiler on first use: a second of every launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _Enough(Exception):
    """The recomputation has made every tensor that the backward pass needs."""


def recomputed(block: Callable[..., Tensor], x: Tensor, *rest: object) -> Tensor:
    """Returns block(x, *rest) of which only x is kept until the backward pass, with the same bits.

    The block must be a pure function of its arguments and parameters: no dropout.
    """
    kind = x.device.type
    autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    saved = 0
    made: dict[int, Tensor] = {}

    def forget(_: Tensor) -> int:
        nonlocal saved
        saved += 1
        return saved - 1

    def keep(tensor: Tensor) -> Tensor:
        made[len(made)] = tensor.detach()
        if len(made) == saved:
            raise _Enough
        return tensor

    def make_again(index: int) -> Tensor:
        if not made:
            enabled, dtype = autocast
            with (
                torch.enable_grad(),
                torch.autocast(kind, dtype, enabled=enabled),
                saved_tensors_hooks(keep, lambda tensor: tensor),
                contextlib.suppress(_Enough),
            ):
                block(x.detach().requires_grad_(), *rest)
        return made.pop(index)

    with saved_tensors_hooks(forget, make_again):
        return block(x, *rest)
