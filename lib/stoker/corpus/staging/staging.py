"""Brings one source file to hot: as a hard link where possible, else as a copy that survives a kill.

A copy is hashed as it is written and grows under the name `.part-<name>`. The next try hashes the partial
copy and reads only the rest of the source; where the result is wrong, it copies the whole file again.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from stoker.store.direct import (
    ALIGNMENT,
    CHUNK,
    PART,
    DirectReader,
    DirectWriter,
    DiskFullError,
    aligned_buffer,
    hash_file,
    insist_on_room,
)
from stoker.store.errors import FULL
from stoker.store.files import move_durably, opened, unlink_durably

LOOK_BYTES = 64 << 20  # between two checks of the free space
# A hard link is refused: other file system, no links on this one, too many links, protected_hardlinks.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Wanted:
    """The content that the receipt names, and the bytes that a copy must leave free on the file system."""

    sha256: str
    size: int
    floor: int


@dataclass(frozen=True)
class Brought:
    """The content that arrived at the target."""

    how: Literal["link", "copy", "kept"]
    sha256: str
    cached: bool = False  # as in FileHash
    xxh3: str = ""  # xxh3_128 of the same bytes: a change check at a sixteenth of the cost of sha256
    resumed: int = 0  # bytes that were there from an earlier try


def bring(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought:
    """Copies or links an open source file to the target, durably; leaves no target of other content.

    `progress` is called with "copied" or "hashed" and the bytes done so far. Raises DiskFullError (after
    deleting the partial copy, for its room) or another OSError (and keeps the partial copy).
    """
    if os.fstat(source).st_size != wanted.size:
        return Brought("copy", "")
    return _link(source, target, wanted, progress) or _copy(source, target, wanted, progress)


def _link(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought | None:
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.unlink(missing_ok=True)
    try:
        # By descriptor: links the file that was opened, even if its name leads to another file by now.
        os.link(f"/proc/self/fd/{source}", temporary, src_dir_fd=source, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return None
    xxh3 = xxhash.xxh3_128()
    found = hash_file(temporary, also=xxh3, progress=lambda done: progress("hashed", done))
    if found.sha256 == wanted.sha256:
        drop_partial(target)
        move_durably(temporary, target)
    else:
        unlink_durably(temporary)
    return Brought("link", found.sha256, found.cached, xxh3.hexdigest())


def _copy(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought:
    part = part_of(target)
    try:
        made = _go_on(source, part, wanted, progress)
        if made.sha256 != wanted.sha256 and made.resumed:
            # The source may be right, and the kept part of the copy wrong.
            drop_partial(target)
            made = _go_on(source, part, wanted, progress)
    except OSError as error:
        if error.errno not in FULL:
            raise
        drop_partial(target)
        raise (
            error if isinstance(error, DiskFullError) else DiskFullError(f"{target}: {error.strerror}")
        ) from error
    if made.sha256 == wanted.sha256:
        move_durably(part, target)
    drop_partial(target)
    return made


def _go_on(source: int, part: Path, wanted: Wanted, progress: Progress) -> Brought:
    """Copies the missing rest and makes it durable; the caller compares the hash."""
    digest, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
    with (
        opened(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as target,
        aligned_buffer(CHUNK) as buffer,
    ):
        there = os.fstat(target).st_size
        kept = there - there % ALIGNMENT if there <= wanted.size else 0
        os.ftruncate(target, kept)
        insist_on_room(part.parent, wanted.size - kept, wanted.floor)
        claimed = DirectReader(target)
        for chunk in claimed.chunks(buffer, kept):
            digest.update(chunk)
            xxh3.update(chunk)
            progress("copied", claimed.done)
        reader, writer = DirectReader(source, start=kept), DirectWriter(target, start=kept)
        looked = kept
        for chunk in reader.chunks(buffer, wanted.size):
            digest.update(chunk)
            xxh3.update(chunk)
            writer.append(chunk)
            progress("copied", writer.done)
            if writer.done - looked >= LOOK_BYTES:
                looked = writer.done
                insist_on_room(part.parent, 0, wanted.floor)
        writer.commit()
    return Brought("copy", digest.hexdigest(), reader.cached, xxh3.hexdigest(), kept)


def part_of(target: Path) -> Path:
    """Returns the path of the target's partial copy."""
    return target.with_name(f"{PART}{target.name}")


def drop_partial(target: Path) -> None:
    """Deletes the target's partial copy, if there is one."""
    if os.path.lexists(part := part_of(target)):
        unlink_durably(part)


def why_away(root: Path) -> str:
    """Returns why a source folder cannot be read now, as a sentence; empty where it is readable."""
    try:
        with os.scandir(root) as entries:
            if next(entries, None) is not None:
                return ""
    except OSError as error:
        return (
            f"the source folder {root} cannot be read: {error.strerror}; mount it, or correct dataset.source"
        )
    return f"the source folder {root} is empty, as an unmounted one is; mount it"
