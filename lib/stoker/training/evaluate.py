"""Computes the held-out loss over all windows of a held-out file, which are never trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.plan.windows import DTYPES
from stoker.store.direct import hash_file
from stoker.store.errors import DataError
from stoker.training.launch import Heldout
from stoker.training.model.transformer import Model
from stoker.training.steps.device import Compute
from stoker.training.steps.memory import while_it_fits

QUARTERS = 4


@dataclass(frozen=True)
class Evaluation:
    """The mean cross-entropy over the held-out windows and its standard error, in nats per token.

    `quarters` are the means over each quarter of the positions: a context that was extended badly shows in
    the last.
    """

    loss: float
    stderr: float
    quarters: tuple[float, ...]


def open_heldout(held: Heldout, dtype: str) -> npt.NDArray[Any]:
    """Returns the held-out windows (N, seq_len + 1), mapped; raises DataError when the file has changed."""
    file, length = held.file, held.seq_len + 1
    try:
        found = hash_file(file)
    except FileNotFoundError as problem:
        raise DataError(
            f"{file} is not there; the train supervisor copies it once at the run's start"
        ) from problem
    if found.sha256 != held.sha256:
        raise DataError(
            f"{file} has sha256 {found.sha256}, the run's record says {held.sha256}: held-out data changed"
        )
    tokens: npt.NDArray[Any] = np.memmap(file, dtype=DTYPES[dtype], mode="r")
    if tokens.size != held.windows * length:
        raise DataError(f"{file} holds {tokens.size} tokens, not {held.windows} windows of {length}")
    return tokens.reshape(held.windows, length)


def evaluate(
    model: Model,
    heldout: npt.NDArray[Any],
    *,
    compute: Compute,
    micro_batch: int,
    go_on: Callable[[int], bool] = lambda windows: True,
) -> Evaluation | None:
    """Returns the loss over all held-out windows; None when `go_on`, told the windows done, is false.

    Where memory runs out it halves its own micro-batch. Raises NoMemory where one window does not fit.

    The standard error is over windows, which are almost independent; the tokens of a window are not.
    """
    losses: list[torch.Tensor] = []
    first = 0

    def losses_of(count: int) -> torch.Tensor:
        nonlocal micro_batch
        micro_batch = count  # a half that fits is kept
        tokens = torch.from_numpy(heldout[first : first + count].astype(np.int64))
        with compute.autocast():
            each = model.loss_by_target(tokens.to(compute.device))
        return torch.stack([part.mean(dim=1) for part in (each, *each.tensor_split(QUARTERS, dim=1))])

    with torch.inference_mode():
        while first < len(heldout):
            if not go_on(first):
                return None
            losses.append(while_it_fits(losses_of, micro_batch))
            first += losses[-1].shape[1]
    each, *quarters = torch.cat(losses, dim=1).double().cpu()
    stderr = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return Evaluation(float(each.mean()), stderr, tuple(float(quarter.mean()) for quarter in quarters))


def of_later(names: Iterable[str], found: Iterable[Evaluation]) -> dict[str, Any]:
    """Returns what a row of metrics has of the later held-out files; {} where there are none."""
    by_name = dict(zip(names, found, strict=True))
    if not by_name:
        return {}
    return {
        "val_losses": {name: _finite(one.loss) for name, one in by_name.items()},
        "val_quarters": {name: [*map(_finite, one.quarters)] for name, one in by_name.items()},
    }


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None  # JSON has no such number
