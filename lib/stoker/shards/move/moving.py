"""Moving shard sets between hot and warm: nothing gets its name, and nothing leaves, before it is proven.

Stopped anywhere, a move done again comes to the same end. What is replaced or given up is renamed into a
trash beside it first: a reader that has a file of it mapped goes on reading.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.corpus.staging.disk_contents import OwnerMark
from stoker.shards.format.manifest import BUILD_NOTE, SUMS, ManifestInvalid, parse_sums
from stoker.shards.format.proof import Proof, Verdict, prove_set
from stoker.store.durable_copy import copy
from stoker.store.errors import StorageError
from stoker.store.files import TEMPORARY, fsync_dir, make_dir, move_durably, remove_tree

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Identity:
    """The set that is meant: its whole key, its manifest's sha256, and the name its trash gets.

    `disks` are the marks of hot and warm: nothing is written once another disk is in the place of one.
    """

    key: str
    manifest_sha256: str
    trash_id: str
    disks: tuple[OwnerMark, ...] = ()

    def insist(self) -> None:
        """Raise UnavailableError unless both disks are those that were meant."""
        for disk in self.disks:
            disk.insist()


@dataclass(frozen=True)
class Moved:
    """How it went. `cached`: a file system let nothing be read past its cache.

    copied, existed: the target is proven. bad_source: what should be copied is wrong, nothing was copied.
    missing: it is not there. evicted: the set is on warm only. bad_copy, unreadable_copy: the set stays, for
    its copy on warm is wrong, or cannot be read now. lost: neither the set nor a right copy of it is there.
    """

    status: Literal[
        "copied", "existed", "bad_source", "missing", "evicted", "bad_copy", "unreadable_copy", "lost"
    ]
    reason: str = ""
    bytes: int = 0
    cached: bool = False


def copy_set(source: Path, target: Path, trash: Path, identity: Identity, progress: Progress) -> Moved:
    """Make target a proven copy of the set in source; a wrong one that stands there is replaced.

    Raises StorageError (DiskFullError among them) or another OSError where the disks do not do what they
    should, UnavailableError where one is not there: then the target is what it was, or gone if it was wrong.
    """
    identity.insist()
    if os.path.lexists(target):
        found = _readable(target, identity, progress)
        if found.verdict == "proven":
            return Moved("existed", bytes=_bytes(target), cached=found.cached)
        _into_trash(target, trash, identity)
    temporary = target.with_name(f"{TEMPORARY}{target.name}")
    make_dir(target.parent)
    remove_tree(temporary)
    make_dir(temporary)
    try:
        for name in _files(source):
            copy(source / name, temporary / name, progress)
    except (FileNotFoundError, ManifestInvalid) as error:
        remove_tree(temporary)
        return _blame(source, identity, str(error), progress)
    except OSError:
        with contextlib.suppress(OSError):  # the first error matters; the next try begins with this
            remove_tree(temporary)
        raise
    fsync_dir(temporary)
    proof = _prove(temporary, identity, progress)
    if proof.verdict != "proven":
        remove_tree(temporary)
        return _blame(source, identity, f"{target}: the copy is {proof.verdict}: {proof.reason}", progress)
    copied = _bytes(temporary)
    identity.insist()
    move_durably(temporary, target)
    _empty(trash, identity)
    return Moved("copied", bytes=copied, cached=proof.cached)


def evict_set(hot: Path, copied: Path, trash: Path, identity: Identity, progress: Progress) -> Moved:
    """Take a set off hot once its copy on warm is proven; one whose copy turns out bad stays, or comes back.

    Raises OSError where hot does not let it go, UnavailableError where a disk is not there: then it is where
    it was, or in the trash.
    """
    identity.insist()
    proof = _prove(copied, identity, progress)
    identity.insist()
    if proof.verdict != "proven":
        here = os.path.lexists(hot) or _back_from_trash(hot, trash, identity)
        if proof.verdict == "unreadable":
            if here:
                return Moved("unreadable_copy", proof.reason)
            raise StorageError(f"{copied}: {proof.reason}; mount the warm disk")
        return Moved("bad_copy" if here else "lost", proof.reason)
    freed = 0
    if os.path.lexists(hot):
        freed = _bytes(hot)
        _into_trash(hot, trash, identity)
    _empty(trash, identity)
    return Moved("evicted", bytes=freed, cached=proof.cached)


def _prove(path: Path, identity: Identity, progress: Progress) -> Proof:
    proof = prove_set(path, key=identity.key, progress=progress)
    if proof.verdict == "proven" and proof.manifest_sha256 != identity.manifest_sha256:
        told = f"manifest.json: sha256 {str(proof.manifest_sha256)[:16]}, on record is "
        verdict: Verdict = "unreadable" if proof.cached else "invalid"
        return Proof(verdict, told + identity.manifest_sha256[:16], proof.cached, None, None)
    return proof


def _readable(path: Path, identity: Identity, progress: Progress) -> Proof:
    proof = _prove(path, identity, progress)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}; check the disk and try again")
    return proof


def _blame(source: Path, identity: Identity, reason: str, progress: Progress) -> Moved:
    """A copy did not become right: because of what was copied, or else StorageError, for the disks' sake."""
    if not os.path.lexists(source):
        return Moved("missing", f"{source} is not there")
    proof = _readable(source, identity, progress)
    if proof.verdict == "invalid":
        return Moved("bad_source", proof.reason)
    raise StorageError(f"{reason}, but what was copied is right; check both disks and this machine's memory")


def _files(directory: Path) -> Iterator[str]:
    """What belongs to a set; files that nobody listed stay where they are."""
    yield SUMS
    names = parse_sums((directory / SUMS).read_bytes())
    if any(name != Path(name).name for name in names):
        raise ManifestInvalid(f"{SUMS} names a file outside the set")
    yield from names
    if (directory / BUILD_NOTE).exists():
        yield BUILD_NOTE


def _bytes(directory: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(directory))


def _into_trash(directory: Path, trash: Path, identity: Identity) -> None:
    make_dir(trash)
    move_durably(directory, trash / f"{identity.key[:16]}-{identity.trash_id}")


def _in_trash(trash: Path, identity: Identity) -> list[Path]:
    return sorted(trash.glob(f"{identity.key[:16]}-*"))


def _back_from_trash(hot: Path, trash: Path, identity: Identity) -> bool:
    """Put back what an interrupted eviction took away, if all of it is there still."""
    for kept in _in_trash(trash, identity):
        with contextlib.suppress(FileNotFoundError, ManifestInvalid):
            if all((kept / name).exists() for name in _files(kept)):
                move_durably(kept, hot)
                return True
    return False


def _empty(trash: Path, identity: Identity) -> None:
    for kept in _in_trash(trash, identity):
        remove_tree(kept)
