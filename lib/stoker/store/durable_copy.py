"""Copies and moves files durably, past the page cache where possible."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stoker.store.direct import DirectReader, DirectWriter, aligned_buffer
from stoker.store.errors import FULL, StorageError
from stoker.store.files import move_durably, opened, unlink_durably

CHUNK = 4 << 20  # at 4 MiB a direct read or write costs no more than its bytes, on disks and over a network
PART = ".part-"  # prefix of the name of an unfinished copy

Progress = Callable[[int], None]


class DiskFullError(StorageError):
    """The target disk has no room; the caller tries again when space is free."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; free some space: Stoker goes on by itself", errno.ENOSPC)


def insist_on_room(folder: Path, size: int, floor: int) -> None:
    """Raises DiskFullError where `size` more bytes would leave less than `floor` bytes free."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < size + floor:
        raise DiskFullError(
            f"{folder}: {free} bytes free, {size} needed and {floor} to stay free (stage.free_floor)"
        )


def copy(source: Path, target: Path, progress: Progress = lambda _: None) -> None:
    """Copies a file's bytes and makes them durable (not the directory entry); removes a partial copy.

    Raises DiskFullError when the disk is full, else OSError.
    """
    try:
        _copy(source, target, progress)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in FULL:
            raise DiskFullError(f"{target}: {error.strerror}") from error
        raise


def _copy(source: Path, target: Path, progress: Progress) -> None:
    with (
        opened(source, os.O_RDONLY | os.O_NOFOLLOW) as reading,
        opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as writing,
        aligned_buffer(CHUNK) as buffer,
    ):
        writer = DirectWriter(writing)
        for chunk in DirectReader(reading).chunks(buffer):
            writer.append(chunk)
            progress(writer.done)
        writer.commit()


def move(source: Path, target: Path, progress: Progress = lambda _: None) -> Literal["rename", "copy"]:
    """Moves a file durably, also to another file system; the source is unlinked after the target is durable.

    Raises FileExistsError where the target exists, else OSError.
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
