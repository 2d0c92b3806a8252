"""Who reads a checkpoint holds a shared flock on its directory; who would remove it looks for one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.kit.lock import still_named
from stoker.store.files import opened

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO)  # some network mounts
_GONE = "{} was moved away while it was being opened"


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Keep a checkpoint from being pruned while the block reads it; raises OSError where it cannot be opened.

    On a file system without locks the block reads all the same: what it finds is proven by its hashes.
    """
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        _lock(descriptor, fcntl.LOCK_SH)  # whoever holds it alone does so for one rename
        if not still_named(directory, descriptor):
            raise FileNotFoundError(errno.ENOENT, _GONE.format(directory), str(directory))
        yield


@contextlib.contextmanager
def unread(directory: Path) -> Iterator[bool]:
    """Whether nobody reads a checkpoint now; if so nobody can begin to for the length of the block."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _lock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
