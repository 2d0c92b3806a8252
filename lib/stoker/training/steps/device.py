"""Chooses device, threads and determinism."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from stoker.store.errors import Transient


@dataclass(frozen=True)
class Compute:
    """The device and precision of forward passes; parameters and optimizer state are always float32."""

    device: torch.device
    bf16: bool

    @property
    def reserved_bytes(self) -> int | None:
        """The GPU memory that torch has taken from the driver; None on a CPU."""
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else None

    def autocast(self) -> torch.autocast:
        """Returns a context that computes in bfloat16 where that is safe; with float32, it has no effect."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def set_up(*, deterministic: bool, threads: int | None, seed: int) -> torch.device:
    """Sets threads, determinism and seed; returns the device: a GPU where there is one.

    Sums on a CPU depend on the number of threads: bit-identical runs need the same number.
    """
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # use_deterministic_algorithms(True) would also load a compiler, which costs each launch a second.
        torch.set_deterministic_debug_mode("error")
        # Filling new buffers helps only to find reads of unset memory, and costs time in every step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_card(kept: Mapping[str, Any], device: torch.device) -> None:
    """Raises Transient, with torch's words, where a run that has a GPU would go on without one."""
    if kept.get("device") != "cuda" or device.type == "cuda":
        return
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        words = "torch counts no GPU"
    except (RuntimeError, AssertionError) as problem:  # the second of a torch without CUDA
        words = str(problem)
    card = kept.get("card") or "a GPU"
    raise Transient(
        f"the run trains on {card}, and none is here: {words}. It waits for the GPU (check nvidia-smi) and "
        "never continues without; on a CPU it can continue as another run: train.run with train.init_from"
    )
