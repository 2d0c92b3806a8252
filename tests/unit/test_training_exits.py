"""Exit codes of the trainer: sysexits by kind of failure."""

from __future__ import annotations

import errno

import pytest

from stoker.store.errors import ConfigError, DataError, LockHeld, NoMemory, NonFinite, StorageError
from stoker.training.trainer import exit_code


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
        (MemoryError(), 75),
        (RuntimeError("a bug"), 70),
    ],
)
def test_a_failure_has_the_exit_code_of_its_kind(problem: Exception, code: int) -> None:
    assert exit_code(problem) == code
