"""Chooses device, threads, determinism and the micro-batch of a new run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version

import torch

# Logits are the largest tensor of a step. On the CPU a micro-batch whose logits stay near the caches is
# fastest (2 cores, 2.4 M parameters, 4096 tokens per step: 0.50 s at 16 MiB, 0.63 s at 64 MiB); a GPU needs
# wide micro-batches.
CPU_LOGITS_BYTES = 16 * 2**20
CUDA_LOGITS_BYTES = 4 * 2**30
LOGIT_BYTES = 4


@dataclass(frozen=True)
class Compute:
    """The device and precision of forward passes; parameters and optimizer state are always float32."""

    device: torch.device
    bf16: bool

    @property
    def reserved_bytes(self) -> int | None:
        """The GPU memory that torch has taken from the driver; None on a CPU."""
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else None

    def autocast(self) -> AbstractContextManager[object]:
        """Returns a context that computes in bfloat16 where that is safe; with float32, it has no effect."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()


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


def choose_micro_batch(*, global_batch: int, seq_len: int, vocab_size: int, device: str) -> int:
    """Returns the windows per forward pass: the largest divisor of a batch with bounded logits."""
    budget = CUDA_LOGITS_BYTES if device == "cuda" else CPU_LOGITS_BYTES
    most = max(1, budget // (seq_len * vocab_size * LOGIT_BYTES))
    return max(size for size in range(1, global_batch + 1) if global_batch % size == 0 and size <= most)


def lacks_to_compile(device: torch.device) -> str | None:
    """Returns what inductor needs for the device and this machine lacks; None where it has all."""
    if device.type == "cpu":
        return None if shutil.which(_cxx()) else f"the C++ compiler {_cxx()}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton"
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return None if found else "a C compiler (gcc), which triton needs"


def compiler(device: torch.device) -> str:
    """Returns the name and version of what compiles kernels for the device."""
    if device.type == "cuda":
        return f"triton {version('triton')}"
    told = subprocess.run([_cxx(), "--version"], capture_output=True, text=True, check=True)
    return told.stdout.partition("\n")[0]


def _cxx() -> str:
    return os.environ.get("CXX", "g++")
