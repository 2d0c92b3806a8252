"""One source file on its way to hot: a hard link where that goes, else a copy that a kill does not undo.

A copy is hashed as it is made and grows under a name of its own, `.part-<name>`. Every COMMIT_BYTES its bytes
are made durable, then a note beside it claims them: whoever goes on cuts away what is beyond the claim,
hashes what is claimed from the disk, and reads only the rest of the source.
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

from stoker.store.direct import ALIGNMENT, DirectReader, DirectWriter, aligned_buffer
from stoker.store.durable_copy import CHUNK, NOTE, PART, DiskFullError, insist_on_room
from stoker.store.errors import FULL
from stoker.store.files import fsync_dir, move_durably, opened, unlink_durably
from stoker.store.hashing import hash_file
from stoker.store.record import RecordDamaged, read_record, write_record

COMMIT_BYTES = 64 << 20  # what a kill costs at most, a second or less of any disk worth staging to
# Where a hard link is refused: another file system, one without links, too many links, protected_hardlinks.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Wanted:
    """The content that the receipt speaks of."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Brought:
    """What arrived. `resumed` bytes of it were there from an earlier try; `cached` as in FileHash.

    `xxh3` is the xxh3_128 of the same bytes: for a sixteenth of what sha256 costs it tells whether
    they changed.
    """

    how: Literal["link", "copy"]
    sha256: str
    size: int
    cached: bool
    xxh3: str = ""
    resumed: int = 0


def bring(source: int, target: Path, wanted: Wanted, floor: int, progress: Progress) -> Brought:
    """Give target the bytes of an open source file, durably, if they are what is wanted; else leave nothing.

    A copy leaves `floor` bytes free on the file system; `progress` is told "copied" or "hashed" and the bytes
    done so far. Raises DiskFullError (a partial copy is given up then, for its room) or another OSError (it
    is kept).
    """
    size = os.fstat(source).st_size
    if size != wanted.size:
        return Brought("copy", "", size, cached=False)
    return _link(source, target, wanted, progress) or _copy(source, target, wanted, floor, progress)


def _link(source: int, target: Path, wanted: Wanted, progress: Progress) -> Brought | None:
    temporary = target.with_name(f".tmp-{target.name}")
    temporary.unlink(missing_ok=True)
    try:
        # By descriptor: what is linked is the file that was opened, whatever its name leads to by now.
        os.link(f"/proc/self/fd/{source}", temporary, src_dir_fd=source, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return None
    xxh3 = xxhash.xxh3_128()
    found = hash_file(temporary, also=xxh3, progress=lambda done: progress("hashed", done))
    if (found.sha256, found.size) == (wanted.sha256, wanted.size):
        drop_partial(target)
        move_durably(temporary, target)
    else:
        unlink_durably(temporary)
    return Brought("link", found.sha256, found.size, found.cached, xxh3.hexdigest())


def _copy(source: int, target: Path, wanted: Wanted, floor: int, progress: Progress) -> Brought:
    part = _part(target)
    try:
        made = _PartialCopy(source, part, wanted).make(floor, progress)
        if made.sha256 != wanted.sha256:
            drop_partial(target)
            if made.resumed:  # the source may be right, and what was kept of it wrong
                made = _PartialCopy(source, part, wanted).make(floor, progress)
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


class _PartialCopy:
    """A copy that goes on where an earlier one of the same file ended."""

    def __init__(self, source: int, part: Path, wanted: Wanted) -> None:
        found = os.fstat(source)
        self._source, self._part, self._wanted = source, part, wanted
        self._note = part.with_name(part.name + NOTE)
        # Another file behind the same name, or one that was written to since, is not gone on with.
        self._origin = {
            "size": found.st_size,
            "mtime_ns": found.st_mtime_ns,
            "inode": found.st_ino,
            "sha256": wanted.sha256,
        }

    def make(self, floor: int, progress: Progress) -> Brought:
        """Copy what is missing and make it durable; whether the hash is the right one the caller sees."""
        kept = self._kept()
        insist_on_room(self._part.parent, self._wanted.size - kept, floor)
        digest, xxh3 = hashlib.sha256(), xxhash.xxh3_128()
        with (
            opened(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as target,
            aligned_buffer(CHUNK) as buffer,
        ):
            os.ftruncate(target, kept)
            fsync_dir(self._part.parent)  # its name too, before a note speaks of it
            claimed = DirectReader(target)
            for chunk in claimed.chunks(buffer, kept):
                digest.update(chunk)
                xxh3.update(chunk)
                progress("copied", claimed.done)
            reader, writer = DirectReader(self._source, start=kept), DirectWriter(target, start=kept)
            committed = kept
            for chunk in reader.chunks(buffer, self._wanted.size):
                digest.update(chunk)
                xxh3.update(chunk)
                writer.append(chunk)
                progress("copied", writer.done)
                if writer.done - committed >= COMMIT_BYTES and writer.done % ALIGNMENT == 0:
                    committed = self._commit(writer)
                    insist_on_room(self._part.parent, 0, floor)
            writer.commit()
        hashes = {"sha256": digest.hexdigest(), "xxh3": xxh3.hexdigest()}
        return Brought("copy", **hashes, size=writer.done, cached=reader.cached, resumed=kept)

    def _commit(self, writer: DirectWriter) -> int:
        writer.commit()
        write_record(self._note, {"v": 1, **self._origin, "bytes": writer.done})
        return writer.done

    def _kept(self) -> int:
        """The bytes of an earlier try that can be gone on from."""
        try:
            body = read_record(self._note)
            there = os.lstat(self._part).st_size
        except (FileNotFoundError, RecordDamaged):
            return 0
        claimed = body.get("bytes")
        if {name: body.get(name) for name in self._origin} != self._origin or not isinstance(claimed, int):
            return 0
        return claimed if 0 < claimed <= there and claimed % ALIGNMENT == 0 else 0


def _part(target: Path) -> Path:
    return target.with_name(f"{PART}{target.name}")


def drop_partial(target: Path) -> None:
    """Remove what is left of a copy: the note first, or it would claim bytes that are gone."""
    part = _part(target)
    for leftover in (part.with_name(part.name + NOTE), part):
        if os.path.lexists(leftover):
            unlink_durably(leftover)


def why_away(root: Path) -> str:
    """Why nothing below a source folder can be read now, in a sentence; empty where it can be seen."""
    try:
        with os.scandir(root) as entries:
            if next(entries, None) is not None:
                return ""
    except OSError as error:
        return (
            f"the source folder {root} cannot be read: {error.strerror}; mount it, or correct dataset.source"
        )
    return f"the source folder {root} is empty, as an unmounted one is; mount it"
