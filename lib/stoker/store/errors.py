"""Every error Stoker raises on purpose, and the exit code (sysexits) each one ends a process with."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StokerError(Exception):
    """The root; the message says what, where, and what to do next."""

    exit_code = 70


class Fatal(StokerError):
    """Stop: the same start would fail the same way."""


class Transient(StokerError):
    """Back off and try again."""

    exit_code = 75


class UsageError(Fatal):
    """The command line asks for something that does not exist."""

    exit_code = 64


class DataError(Fatal):
    """A file's content is wrong."""

    exit_code = 65


class UnavailableError(Fatal):
    """Something needed from outside (a port, a service, a directory) cannot be had."""

    exit_code = 69


class StorageError(Fatal, OSError):
    """A read or write failed; also an OSError, so that `errno` still tells a full disk from a broken one."""

    exit_code = 74

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class ConfigError(Fatal):
    """The configuration is wrong; a restart cannot help."""

    exit_code = 78


class UnknownFormat(Fatal):
    """A file is of a format version that is not known here: unreadable, never wrong, and left as it is."""

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
    """Turn an OSError into a StorageError naming the path; a missing or an existing file stays what it is."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "look at the kernel's log and try again")
        raise StorageError(f"cannot {action} {path}: {error.strerror}; {advice}", error.errno) from error
