"""The figures of a step that depend on the machine: speed, MFU, memory, waits."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.training.model.flops import matmul_parameters, peak_flops, step_flops
from stoker.training.model.transformer import Model


class Figures:
    """Measures the steps and saves of one launch."""

    def __init__(self, model: Model, device: torch.device, card: str | None) -> None:
        self._shape, self._device = model.shape, device
        self._matrices = matmul_parameters(model)
        self._peak = peak_flops(card)
        self._save_stall_s: float | None = None

    def of_step(
        self, groups: Sequence[Tensor], *, seconds: float, waited_s: float, micro_batch: int
    ) -> dict[str, Any]:
        """Returns a step's words and fields, by name; groups of windows (b, seq_len + 1), `seconds` in all.

        Leaves out what is not known: MFU on a CPU or an unknown card, the stall before the first save.
        """
        sizes = [(group.shape[0], group.shape[1] - 1) for group in groups]
        seconds = max(1e-9, seconds)
        figures = {
            "tokens_per_s": round(sum(windows * seq_len for windows, seq_len in sizes) / seconds, 1),
            "mfu": self._peak
            and round(step_flops(self._matrices, self._shape, sizes) / seconds / self._peak, 4),
            "data_wait_s": round(waited_s, 6),
            "save_stall_s": self._save_stall_s,
            "memory_bytes": peak_memory_bytes(self._device),
            "alloc_retries": allocation_retries(self._device),
            "micro_batch": micro_batch,
        }
        return {name: value for name, value in figures.items() if value is not None}

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measures how long a save keeps the loop from training."""
        began = time.monotonic()
        yield
        self._save_stall_s = round(time.monotonic() - began, 6)


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the most memory of tensors on a GPU since the last call; on a CPU the process' peak RSS."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def allocation_retries(device: torch.device) -> int:
    """Returns how often the allocator of this process had to give memory back and try again; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))
