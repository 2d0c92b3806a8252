"""The files of a checkpoint carried from one disk to another, each durable, hashed as it is read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stoker.checkpoints.format import BODY, SUMS, CheckpointBody, FileEntry, read_body, write_sums
from stoker.store.errors import DataError, StorageError, storage_errors
from stoker.store.files import fsync_dir, opened, temporary_beside, write_all
from stoker.store.hashing import hash_file
from stoker.store.names import inside

_CHUNK = 4 << 20
PORTION_BYTES = 64 << 20  # written between two syncs, so that a slow disk is heard of before its deadline

Tell = Callable[[int], None]  # gets the bytes of a file done so far


class SourceBad(DataError):
    """What was to be copied is not what it should be."""


def carry(source: Path, into: Path, tell: Tell) -> int:
    """Copy every listed file of a checkpoint, durably, SHA256SUMS last; returns the bytes written."""
    data = {name: read_listed(source, name) for name in (BODY, SUMS)}
    body = parse_body(data[BODY])
    sums = {name: entry.sha256 for name, entry in body.files.items()}
    if data[SUMS] != write_sums({**sums, BODY: hashlib.sha256(data[BODY]).hexdigest()}):
        raise SourceBad(f"{BODY} and {SUMS} disagree")
    _require_room(into, body.bytes)
    written = 0
    for name, entry in sorted(body.files.items()):
        written += _carry_file(inside(source, name), inside(into, name), entry, tell)
    for name, content in data.items():
        entry = FileEntry(len(content), hashlib.sha256(content).hexdigest())
        written += _carry_file(source / name, into / name, entry, tell)
    return written


def read_listed(source: Path, name: str) -> bytes:
    """A small file of a checkpoint, whole; SourceBad when it is missing."""
    try:
        with storage_errors("read", source / name):
            return (source / name).read_bytes()
    except FileNotFoundError as missing:
        raise SourceBad(f"{name} is missing") from missing


def parse_body(data: bytes) -> CheckpointBody:
    """checkpoint.json of what is carried; SourceBad when it is none."""
    try:
        return read_body(data)
    except DataError as problem:
        raise SourceBad(str(problem)) from problem


def _carry_file(source: Path, target: Path, entry: FileEntry, tell: Tell) -> int:
    """Copy one file, hashing what is read; returns the bytes written, 0 where it is there in full length."""
    if _size(target) == entry.size:
        return 0  # of an earlier try: its proof will say whether it became durable
    try:
        with (
            storage_errors(f"copy {source} to", target),
            opened(source, os.O_RDONLY | os.O_NOFOLLOW) as reader,
            opened(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as writer,
        ):
            copied = _copy_bytes(reader, writer, None, tell)
    except FileNotFoundError as missing:
        if source.exists():
            raise StorageError(f"{target.parent} went away; is it mounted?", errno.ENOENT) from missing
        raise SourceBad(f"{source.name} is missing") from missing
    if copied != entry:
        raise SourceBad(f"{source.name} is not what {BODY} says")
    return entry.size


def _copy_bytes(reader: int, writer: int, most: int | None, tell: Tell) -> FileEntry:
    """Copy an open file, at most so many bytes of it, durably; returns size and hash of what was read."""
    digest, size, synced = hashlib.sha256(), 0, 0
    while chunk := os.read(reader, _CHUNK if most is None else min(_CHUNK, most - size)):
        digest.update(chunk)
        write_all(writer, chunk)
        size += len(chunk)
        if size - synced >= PORTION_BYTES:
            os.fdatasync(writer)
            synced = size
        tell(size)
    os.fsync(writer)
    for descriptor in (reader, writer):  # neither is read again soon
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return FileEntry(size, digest.hexdigest())


def bring_heldout(source: Path, target: Path, sha256: str) -> Literal["there", "brought", "missing"]:
    """Make `target` hold the held-out windows with this hash, read back past the cache.

    Raises SourceBad where the source has other bytes, StorageError where either disk fails.
    """
    with contextlib.suppress(FileNotFoundError):
        if hash_file(target).sha256 == sha256:
            return "there"
    return "brought" if bring_log(source, target, lambda _: None, sha256) else "missing"


def bring_log(source: Path, target: Path, tell: Tell, sha256: str | None = None) -> bool:
    """Make `target` a copy of a log as it is now, read back past the cache; False where there is none.

    Raises SourceBad where it has another hash than the one given, StorageError where either disk fails.
    """
    temporary = temporary_beside(target)
    try:
        with (
            storage_errors(f"copy {source} to", target),
            opened(source, os.O_RDONLY) as reader,
            opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as writer,
        ):
            found = _copy_bytes(reader, writer, os.fstat(reader).st_size, tell).sha256
        if sha256 is not None and found != sha256:
            raise SourceBad(f"{source}: sha256 {found[:16]}, the run's record says {sha256[:16]}")
        if hash_file(temporary).sha256 != found:
            raise StorageError(f"{temporary} reads differently from what was written", errno.EIO)
        with storage_errors("replace", target):
            temporary.rename(target)
            fsync_dir(target.parent)
    except FileNotFoundError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return True


def _require_room(place: Path, needed: int) -> None:
    """Raise StorageError, with the numbers, when what is still to be written will not go in."""
    with storage_errors("look at", place):
        room = os.statvfs(place)
        there = sum(entry.stat().st_size for entry in os.scandir(place) if entry.is_file())
    free = room.f_bavail * room.f_frsize
    if free < needed - there:
        raise StorageError(
            f"{place.parent}: {free} bytes free, {needed - there} needed; free some space there: it goes on "
            "by itself",
            errno.ENOSPC,
        )


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None
