"""Exit codes of the trainer: sysexits by kind of failure."""

from __future__ import annotations

import errno

import pytest
import torch

from stoker.store.errors import ConfigError, DataError, LockHeld, NoMemory, NonFinite, StorageError
from stoker.training.steps.failures import exit_code


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (DataError("a set is wrong"), 65),
        (ConfigError("another digest"), 78),
        (NoMemory("no room for one window"), 71),
        (NonFinite("the loss is nan", step=3), 76),
        (LockHeld("held"), 75),
        (StorageError("disk full"), 74),
        (OSError(errno.ENOSPC, "No space left on device"), 74),
        (OSError(errno.EIO, "Input/output error"), 74),
        (FileNotFoundError(errno.ENOENT, "gone"), 70),
        (MemoryError(), 71),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), 71),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), 71),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 71),
        (torch.AcceleratorError("CUDA error: out of memory"), 71),
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"), 75),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), 75),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"), 75),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), 75),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), 70),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), 70),
        (ValueError("CUDA error: not from torch"), 70),
        (RuntimeError("a bug"), 70),
    ],
)
def test_a_failure_has_the_exit_code_of_its_kind(problem: Exception, code: int) -> None:
    assert exit_code(problem) == code
