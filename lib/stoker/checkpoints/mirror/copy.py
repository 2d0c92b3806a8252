"""Checkpoints brought to the mirror and back, and given up there; a kill at any moment does no harm.

A copy is written under a temporary name, each file durable, and read back past the cache; only when it is
proven it gets its name by one rename. What an interrupted copy to the mirror finished file by file is used.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.checkpoints.format import BODY, TEMPORARY, checkpoint_name
from stoker.checkpoints.mirror.file_copy import SourceBad, Tell, carry, parse_body, read_listed
from stoker.checkpoints.mirror.layout import MARK_HEX, leftovers, mirror_name
from stoker.checkpoints.proof import Proof, prove_checkpoint
from stoker.checkpoints.reading import reading, unread
from stoker.store.errors import DataError, StorageError, storage_errors
from stoker.store.files import make_dir, move_durably, publish_dir, remove_tree, sweep_temporaries
from stoker.store.names import inside, new_id


@dataclass(frozen=True)
class Copied:
    """A copy stands, proven; `bytes` were written for it, `set_aside` says where a wrong one was moved."""

    name: str
    bytes: int
    set_aside: str | None = None


def copy_checkpoint(source: Path, mirror: Path, trash: Path, digest: str, tell: Tell) -> Copied:
    """Copy a proven checkpoint into a run's mirror; `digest` is its checkpoint.json's sha256.

    A target that is there and proven is enough; a wrong one is moved aside into the trash and replaced.
    Raises SourceBad when the source is not what was proven, StorageError (warm full or failing, the copy
    reads differently) and DataError when another checkpoint bears its name.
    """
    with reading(source):
        data = read_listed(source, BODY)
        if hashlib.sha256(data).hexdigest() != digest:
            raise SourceBad(f"{BODY} is not the one that was proven")
        body = parse_body(data)
        name = mirror_name(body.timeline, body.step, digest)
        target = mirror / name
        temporary = target.parent / f".tmp-{target.name}"  # a name of its own: the next try finds it
        sweep(mirror, trash, sparing=temporary)
        set_aside = None
        if os.path.lexists(target):
            proof = _judged(target, tell)
            if proof.digest == digest:
                return Copied(name, 0)
            if proof.verdict == "proven":
                raise DataError(f"{target} is another checkpoint, and is whole; move it away")
            set_aside = str(move_aside(target, trash))
        make_dir(temporary)
        written = carry(source, temporary, tell)
        _proven_copy(temporary, digest, tell)
        publish_dir(temporary, target)
    return Copied(name, written, set_aside)


@dataclass(frozen=True)
class Fetched:
    """What became of a fetch: the proof of what now lies in checkpoints/, or why the copy is no help.

    `gone`: there is no such copy; `bad`: it was proven wrong and moved to `set_aside`.
    """

    state: Literal["fetched", "gone", "bad"]
    reason: str = ""
    proof: Proof | None = None
    set_aside: str | None = None


def fetch_checkpoint(copy: Path, checkpoints: Path, trash: Path, tell: Tell) -> Fetched:
    """Bring a mirrored checkpoint back into `checkpoints` under the name of its step, proven there.

    A step that is there already and is the same checkpoint is enough. Raises StorageError where either disk
    cannot be read or written now, DataError when another checkpoint has the step's name.
    """
    if not copy.is_dir():
        return Fetched("gone", f"{copy} is not there")
    try:
        with reading(copy):
            return _fetch(copy, checkpoints, tell)
    except SourceBad as difference:
        proof = _judged(copy, tell)
        if proof.verdict == "proven":  # it read differently once
            raise StorageError(f"{copy}: {difference}, and then it is proven; tried again") from difference
        return Fetched("bad", proof.reason, set_aside=str(move_aside(copy, trash)))


def _fetch(copy: Path, checkpoints: Path, tell: Tell) -> Fetched:
    data = read_listed(copy, BODY)
    digest = hashlib.sha256(data).hexdigest()
    if digest[:MARK_HEX] != copy.name[-MARK_HEX:]:
        raise SourceBad(f"{BODY} is not the one its name speaks of")
    target = checkpoints / checkpoint_name(parse_body(data).step)
    if os.path.lexists(target):
        proof = prove_checkpoint(target, progress=tell)
        if proof.digest != digest:
            raise DataError(f"{target} is there and is not {copy} ({proof.verdict}); nothing is replaced")
        return Fetched("fetched", proof=proof)
    temporary = checkpoints / f"{TEMPORARY}fetched-{target.name.removeprefix('step-')}"
    remove_tree(temporary)
    make_dir(temporary)
    try:
        carry(copy, temporary, tell)
        proof = _proven_copy(temporary, digest, tell)
        publish_dir(temporary, target)
    except BaseException:
        remove_tree(temporary)
        raise
    return Fetched("fetched", proof=proof)


def move_aside(copy: Path, trash: Path) -> Path:
    """Take a copy's name away by one rename; what is in the trash is removed by `sweep`."""
    make_dir(trash)
    place = trash / f"{_trash_prefix(copy.parent.parent)}{copy.parent.name}-{copy.name}-{new_id()}"
    move_durably(copy, place)
    return place


def give_up(mirror: Path, names: list[str], trash: Path) -> list[str]:
    """Remove copies that nobody reads; returns the names that went. Raises StorageError."""
    gone = []
    for name in names:
        copy = inside(mirror, name)
        try:
            with storage_errors("remove", copy), unread(copy) as free:
                if free:
                    move_aside(copy, trash)
                    gone.append(name)
        except FileNotFoundError:
            gone.append(name)
    sweep(mirror, trash)
    return gone


def sweep(mirror: Path, trash: Path, sparing: Path | None = None) -> list[str]:
    """Remove what interrupted copies and removals of this run left; `sparing` is the copy to go on with."""
    left = [path for path in leftovers(mirror) if path != sparing]
    if trash.is_dir():
        left += sorted(trash.glob(f"{_trash_prefix(mirror)}t*"))
    for path in left:
        remove_tree(path)
    if mirror.is_dir():
        sweep_temporaries(mirror)
    return [str(path) for path in left]


def _trash_prefix(mirror: Path) -> str:
    return f"checkpoint-{mirror.name}-"


def _proven_copy(temporary: Path, digest: str, tell: Tell) -> Proof:
    """Prove what was written; what is not as it should be is removed and the whole is tried again."""
    proof = prove_checkpoint(temporary, progress=tell)
    if proof.digest == digest:
        return proof
    if proof.verdict != "unreadable":
        remove_tree(temporary)
    raise StorageError(
        f"{temporary} does not read as it was written ({proof.verdict}: {proof.reason}); check the disk",
        errno.EIO,
    )


def _judged(copy: Path, tell: Tell) -> Proof:
    """The proof of what bears a name; StorageError where it cannot be known now."""
    proof = prove_checkpoint(copy, progress=tell)
    if proof.verdict == "unreadable":
        raise StorageError(f"{copy}: {proof.reason}", errno.EIO)
    return proof
