"""Checkpoints brought to the mirror and back, and given up there; a kill at any moment does no harm.

A copy is written under a temporary name, each file durable, and read back past the cache; only when it is
proven it gets its name by one rename. What an interrupted copy to the mirror finished file by file is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from stoker.checkpoints.format import BODY, SUMS, TEMPORARY, checkpoint_name, mark_of, read_body, step_of
from stoker.checkpoints.proof import Progress, Proof, prove_checkpoint
from stoker.checkpoints.retention import reading, unread
from stoker.store.durable_copy import copy, insist_on_room
from stoker.store.errors import DataError, StorageError, storage_errors
from stoker.store.files import (
    fsync_dir,
    make_dir,
    move_durably,
    publish_dir,
    remove_tree,
    sweep_temporaries,
    temporary_beside,
)
from stoker.store.hashing import hash_file
from stoker.store.names import inside, new_id


class SourceBad(DataError):
    """What was to be copied is not what it should be."""


def copy_checkpoint(source: Path, target: Path, digest: str, trash: Path, tell: Progress) -> str | None:
    """Copy a proven checkpoint to its place in a run's mirror; returns where a wrong copy was moved.

    `digest` is its checkpoint.json's sha256. A target that is there and proven is enough; a wrong one is
    moved into the trash and replaced. Raises SourceBad when the source is not what was proven, StorageError
    (warm full or failing, the copy reads differently) and DataError when another checkpoint bears its name.
    """
    mirror = target.parent.parent
    temporary = target.parent / f".tmp-{target.name}"  # a name of its own: the next try finds it
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
    """Bring a mirrored checkpoint back into `checkpoints` under the name of its step; returns its proof.

    A step that is there already and is the same checkpoint is enough. Raises SourceBad for a copy that is
    wrong, StorageError where either disk cannot be read or written now, DataError when another checkpoint has
    the step's name.
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
    """Copy a checkpoint's files into a directory, and prove them; `digest` may be its first digits only.

    What does not prove is removed. Then the source is proven: SourceBad where that is wrong, else
    StorageError, and the whole is tried again.
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
    """Copy every listed file that is not there in full length; a proof will say what became durable."""
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
    """Make `target` a copy of a file as it is now, read back where its hash is given; False without a source.

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
    """Take a copy's name away by one rename; what is in the trash is removed by `sweep`."""
    make_dir(trash)
    place = trash / f"{_trash_prefix(copied.parent.parent)}{copied.parent.name}-{copied.name}-{new_id()}"
    move_durably(copied, place)
    return place


def give_up(mirror: Path, names: list[str], trash: Path) -> list[str]:
    """Remove copies that nobody reads; returns the names that went. Raises StorageError."""
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
    """Remove what interrupted copies and removals of this run left; `sparing` is the copy to go on with."""
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
    """The proof of what bears a name; StorageError where it cannot be known now."""
    proof = prove_checkpoint(path, progress=tell)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}", errno.EIO)
    return proof
