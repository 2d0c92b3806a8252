"""Bringing a file's bytes under another name: a hard link where the file system allows, else a copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stoker.store.errors import StorageError
from stoker.store.files import move_durably, opened, unlink_durably, write_all

_CHUNK = 4 << 20
# Where a hard link is refused: another file system, one without links, too many links, protected_hardlinks.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
_FULL = (errno.ENOSPC, errno.EDQUOT)

Progress = Callable[[int], None]


class DiskFullError(StorageError):
    """No room left where the bytes should go; the work is tried again when there is."""


def bring(source: Path, target: Path, progress: Progress = lambda _: None, floor: int = 0) -> str:
    """Make `target` hold source's bytes, durably but for its directory entry; returns "link" or "copy".

    An existing target is removed first: it can only be what an interrupted try left. A copy must leave
    `floor` bytes free on the file system. Raises DiskFullError, FileNotFoundError or another OSError.
    """
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    else:
        return "link"
    room = os.statvfs(target.parent)
    size = source.stat().st_size
    if room.f_bavail * room.f_frsize < size + floor:
        raise DiskFullError(
            f"{target.parent}: {room.f_bavail * room.f_frsize} bytes free, {size} needed and {floor} to stay "
            "free (stage.free_floor); free some space: Stoker goes on by itself",
            errno.ENOSPC,
        )
    copy(source, target, progress)
    return "copy"


def copy(source: Path, target: Path, progress: Progress = lambda _: None) -> None:
    """Copy the bytes and make them durable (not the directory entry); a partial copy is removed.

    Raises DiskFullError when there is no room, else OSError.
    """
    try:
        _copy(source, target, progress)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise DiskFullError(
                f"{target}: {error.strerror}; free some space: Stoker goes on by itself"
            ) from error
        raise


def _copy(source: Path, target: Path, progress: Progress) -> None:
    with (
        opened(source, os.O_RDONLY | os.O_NOFOLLOW) as reader,
        opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as writer,
    ):
        done = 0
        while chunk := os.read(reader, _CHUNK):
            write_all(writer, chunk)
            done += len(chunk)
            progress(done)
        os.fsync(writer)


def move(source: Path, target: Path, progress: Progress = lambda _: None) -> Literal["rename", "copy"]:
    """Move a file durably, also to another file system; the source goes only when the target is durable.

    Raises FileExistsError where the target is taken, else OSError.
    """
    try:
        move_durably(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return "rename"
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.unlink(missing_ok=True)
    copy(source, temporary, progress)
    move_durably(temporary, target)
    unlink_durably(source)
    return "copy"
