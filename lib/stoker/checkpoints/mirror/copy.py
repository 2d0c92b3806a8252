"""Copies checkpoints to the mirror and back, and removes copies; a kill at any moment does no harm.

A copy is written under a temporary name, each file durable, and read back past the cache; only a proven copy
gets its name, by one rename. The next try uses the files that an interrupted copy finished.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from stoker.checkpoints.format import BODY, SUMS, TEMPORARY, checkpoint_name, mark_of, read_body, step_of
from stoker.checkpoints.proof import Progress, Proof, prove_checkpoint
from stoker.checkpoints.retention import reading, unread
from stoker.store.direct import copy, hash_file, insist_on_room
from stoker.store.errors import DataError, StorageError, storage_errors
from stoker.store.files import (
    fsync_dir,
    inside,
    make_dir,
    move_durably,
    publish_dir,
    remove_tree,
    sweep_temporaries,
    temporary_beside,
)
from stoker.store.record import new_id


class SourceBad(DataError):
    """Raised where the file or checkpoint to copy is not the expected one."""


def copy_checkpoint(source: Path, target: Path, digest: str, trash: Path, tell: Progress) -> str | None:
    """Copies a proven checkpoint into a run's mirror; returns the path of a wrong copy that was moved aside.

    `digest` is its checkpoint.json's sha256. A proven copy at the target is enough; a wrong copy is moved
    into the trash and replaced. Raises SourceBad when the source is not the proven checkpoint, StorageError
    (warm full or failing, the copy reads differently) and DataError when another checkpoint has the copy's
    name.
    """
    mirror = target.parent.parent
    temporary = target.parent / f".tmp-{target.name}"  # a fixed name: the next try finds it
    set_aside = None
    with reading(source):
        sweep(mirror, trash, sparing=temporary)
        if os.path.lexists(target):
            proof = _judged(target, tell)
            if proof.digest == digest:
                return None
            if proof.verdict == "proven":
                raise DataError(f"{target} is another checkpoint, and is whole; move it away")
            set_aside = str(move_aside(target, trash))
        _proven_copy(source, temporary, digest, tell)
        publish_dir(temporary, target)
    return set_aside


def fetch_checkpoint(copied: Path, checkpoints: Path, tell: Progress) -> Proof:
    """Copies a mirrored checkpoint back into `checkpoints` under the name of its step; returns its proof.

    The same checkpoint at the target is enough. Raises SourceBad for a wrong copy, StorageError where either
    disk cannot be read or written now, DataError when another checkpoint has the step's name.
    """
    step, mark = step_of(copied.name), mark_of(copied.name)
    assert step is not None and mark is not None, copied
    target = checkpoints / checkpoint_name(step)
    with reading(copied):
        if os.path.lexists(target):
            proof = prove_checkpoint(target, progress=tell)
            if not _is(proof, mark):
                raise DataError(
                    f"{target} is there and is not {copied} ({proof.verdict}); nothing is replaced"
                )
            return proof
        temporary = checkpoints / f"{TEMPORARY}fetched-{step:09d}"
        remove_tree(temporary)
        try:
            proof = _proven_copy(copied, temporary, mark, tell)
            publish_dir(temporary, target)
        except BaseException:
            remove_tree(temporary)
            raise
        return proof


def _proven_copy(source: Path, into: Path, digest: str, tell: Progress) -> Proof:
    """Copies a checkpoint's files into a directory, and proves them; `digest` may be its first digits only.

    An invalid copy is removed. After a failure the source is proven: SourceBad where the source is wrong,
    else StorageError, and the caller tries again.
    """
    make_dir(into)
    try:
        _copy_files(source, into, tell)
        proof = prove_checkpoint(into, progress=tell)
        if _is(proof, digest):
            return proof
        if proof.verdict != "unreadable":
            remove_tree(into)
        why = f"{into} does not read as it was written ({proof.verdict}: {proof.reason}); check the disk"
    except (DataError, FileNotFoundError) as problem:
        why = f"{source} cannot be copied to {into}: {problem}"
    original = _judged(source, tell)
    if not _is(original, digest):
        raise SourceBad(original.reason or f"{source}: {BODY} is not the one that was proven")
    raise StorageError(why, errno.EIO)


def _copy_files(source: Path, into: Path, tell: Progress) -> None:
    """Copies every listed file that is missing or not full length; the proof shows which became durable."""
    with storage_errors(f"copy {source} to", into):
        names = [*sorted(read_body((source / BODY).read_bytes(), source / BODY).files), BODY, SUMS]
        sizes = {name: inside(source, name).stat().st_size for name in names}
        there = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(into)}
        missing = [name for name in names if there.get(name) != sizes[name]]
        insist_on_room(into, sum(sizes[name] for name in missing), 0)
        for name in missing:
            (into / name).unlink(missing_ok=True)
            copy(source / name, into / name, tell)


def copy_file(source: Path, target: Path, tell: Progress, sha256: str = "") -> bool:
    """Copies a file as it is now, and reads the copy back where its hash is given; False without a source.

    Raises SourceBad where the source has another hash, StorageError where either disk fails.
    """
    temporary = temporary_beside(target)
    try:
        with storage_errors(f"copy {source} to", target):
            copy(source, temporary, tell)
            if sha256 and hash_file(temporary).sha256 != sha256:
                if hash_file(source).sha256 != sha256:
                    raise SourceBad(f"{source} has not the sha256 {sha256[:16]} that is on record")
                raise StorageError(f"{temporary} reads differently from what was written", errno.EIO)
            temporary.rename(target)
            fsync_dir(target.parent)
    except FileNotFoundError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return True


def move_aside(copied: Path, trash: Path) -> Path:
    """Renames a copy into the trash, which `sweep` empties."""
    make_dir(trash)
    place = trash / f"{_trash_prefix(copied.parent.parent)}{copied.parent.name}-{copied.name}-{new_id()}"
    move_durably(copied, place)
    return place


def give_up(mirror: Path, names: list[str], trash: Path) -> list[str]:
    """Removes copies without readers; returns the names that are gone. Raises StorageError."""
    gone = []
    for name in names:
        copied = inside(mirror, name)
        try:
            with storage_errors("remove", copied), unread(copied) as free:
                if free:
                    move_aside(copied, trash)
                    gone.append(name)
        except FileNotFoundError:
            gone.append(name)
    sweep(mirror, trash)
    return gone


def sweep(mirror: Path, trash: Path, sparing: Path | None = None) -> None:
    """Removes leftovers of this run's interrupted copies and removals; `sparing` is the copy to continue."""
    for path in (*mirror.glob(f"t*/{TEMPORARY}*"), *trash.glob(f"{_trash_prefix(mirror)}t*")):
        if path != sparing:
            remove_tree(path)
    if mirror.is_dir():
        sweep_temporaries(mirror)


def _trash_prefix(mirror: Path) -> str:
    return f"checkpoint-{mirror.name}-"


def _is(proof: Proof, digest: str) -> bool:
    return proof.digest is not None and proof.digest.startswith(digest)


def _judged(path: Path, tell: Progress) -> Proof:
    """Returns the proof of a checkpoint; raises StorageError where there is no verdict now."""
    proof = prove_checkpoint(path, progress=tell)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}", errno.EIO)
    return proof
