"""Tells what an exception means; needs no torch, because a failure may come before torch is loaded."""

from __future__ import annotations

import errno
import os

from stoker.store.errors import NoMemory, StokerError
from stoker.supervise.health.exits import tells_card_lost

STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENODEV, errno.ESTALE})

# On a CPU torch raises a RuntimeError; CUDA's libraries and the driver have words of their own.
_NO_MEMORY = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")


def is_out_of_memory(problem: BaseException) -> bool:
    """Returns whether memory ran out, of the host or of a GPU."""
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    return isinstance(problem, RuntimeError) and any(word in str(problem) for word in _NO_MEMORY)


def words_of(problem: BaseException) -> str:
    """Returns an error's words; its name where it has none, as Python's MemoryError."""
    return str(problem) or type(problem).__name__


def is_card_lost(problem: BaseException) -> bool:
    """Returns whether a GPU or its driver failed: torch.AcceleratorError is a RuntimeError, too."""
    return isinstance(problem, RuntimeError) and tells_card_lost(str(problem))


def exit_code(problem: Exception) -> int:
    """Returns the sysexits code of a failure; 70 for an unforeseen one."""
    if isinstance(problem, StokerError):
        return problem.exit_code
    if isinstance(problem, OSError) and problem.errno in STORAGE_ERRNOS:
        return os.EX_IOERR
    if is_out_of_memory(problem):
        return NoMemory.exit_code
    return os.EX_TEMPFAIL if is_card_lost(problem) else os.EX_SOFTWARE
