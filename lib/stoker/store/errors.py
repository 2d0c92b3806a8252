"""Every error that Stoker raises on purpose, each with the exit code (sysexits) of a process that it ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StokerError(Exception):
    """The base class; the message names the problem, the place, and the next step for the operator."""

    exit_code = 70


class Fatal(StokerError):
    """An error that a retry cannot mend: the process ends."""


class Transient(StokerError):
    """An error that passes: trying again later helps."""

    exit_code = 75


class UsageError(Fatal):
    """The command line asks for something that does not exist."""

    exit_code = 64


class DataError(Fatal):
    """A file's content is wrong."""

    exit_code = 65


class UnavailableError(Fatal):
    """A port, a service or a directory outside Stoker cannot be used."""

    exit_code = 69


class NoMemory(Fatal):
    """The device's memory is too small for what must be held in it at once."""

    exit_code = 71


class NonFinite(Fatal):
    """A loss or gradient is infinite or nan."""

    exit_code = 76

    def __init__(self, message: str, **words: object) -> None:
        """`words` say where: the step, and the position of its first window in the plan."""
        super().__init__(message)
        self.words = words


class StorageError(Fatal, OSError):
    """A read or write failed.

    It is also an OSError, whose `errno` separates a full disk from a broken one.
    """

    exit_code = 74

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class ConfigError(Fatal):
    """The configuration is wrong; a restart cannot help."""

    exit_code = 78


class UnknownFormat(Fatal):
    """A file has a format version unknown to this Stoker: unreadable, never damaged, and left as it is."""

    exit_code = 78


class LockHeld(Transient):
    """Another process holds the lock."""


FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota or free space",
    errno.EROFS: "mount the file system writable",
    errno.EIO: "check the disk and the kernel's log",
    errno.EACCES: "check the owner and mode of the directory",
    errno.EPERM: "check the owner and mode of the directory",
    errno.EXDEV: "both must be on one file system",
}


@contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turns an OSError into a StorageError with the path; FileNotFoundError and FileExistsError pass."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the kernel's log and try again")
        raise StorageError(f"cannot {action} {path}: {error.strerror}; {advice}", error.errno) from error
