"""Moves shard sets between hot and warm: no copy gets its name, and no set leaves, before the copy is proven.

A move that was stopped anywhere comes to the same end when it is repeated. A set that is replaced or given up
is first renamed into a trash beside it: a reader that has mapped one of its files can continue to read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.kit.workers.child import insist_mounted
from stoker.shards.format.manifest import BUILD_NOTE, SUMS, ManifestInvalid, parse_sums
from stoker.shards.format.proof import Proof, Verdict, prove_set
from stoker.store.direct import copy
from stoker.store.errors import StorageError
from stoker.store.files import TEMPORARY, fsync_dir, make_dir, move_durably, remove_tree

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Identity:
    """The set to move."""

    key: str  # the whole key
    manifest_sha256: str
    trash_id: str  # ends its name in the trash
    # marks of hot and warm: no write happens once another disk is in place of either
    disks: Sequence[Mapping[str, Any]] = ()

    def insist(self) -> None:
        """Raises UnavailableError unless both marked disks are mounted."""
        insist_mounted(self.disks)


@dataclass(frozen=True)
class Moved:
    """The result of a move.

    copied, existed: the target is proven. bad_source: the set to copy is wrong, and was not copied. missing:
    it does not exist. evicted: the set is on warm only. bad_copy, unreadable_copy: the set stays on hot,
    because its copy on warm is wrong or cannot be read now. lost: neither the set nor a right copy of it
    exists.
    """

    status: Literal[
        "copied", "existed", "bad_source", "missing", "evicted", "bad_copy", "unreadable_copy", "lost"
    ]
    reason: str = ""
    bytes: int = 0
    cached: bool = False  # the file system refused reads past its cache


def copy_set(source: Path, target: Path, trash: Path, identity: Identity, progress: Progress) -> Moved:
    """Makes the target a proven copy of the set in source; replaces a wrong set there.

    Raises StorageError (such as DiskFullError) or another OSError where a disk fails, UnavailableError where
    a disk is not mounted: the target is then unchanged, or gone if it was wrong.
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
        with contextlib.suppress(OSError):  # the first error matters, and the next try removes the rest
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
    """Removes a set from hot once its copy on warm is proven; a set with a bad copy stays, or comes back.

    Raises OSError where hot fails, UnavailableError where a disk is not mounted: the set is then where it
    was, or in the trash.
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
        text = f"manifest.json: sha256 {str(proof.manifest_sha256)[:16]}, on record is "
        verdict: Verdict = "unreadable" if proof.cached else "invalid"
        return Proof(verdict, text + identity.manifest_sha256[:16], proof.cached, None, None)
    return proof


def _readable(path: Path, identity: Identity, progress: Progress) -> Proof:
    proof = _prove(path, identity, progress)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}; check the disk and try again")
    return proof


def _blame(source: Path, identity: Identity, reason: str, progress: Progress) -> Moved:
    """Returns the fault of the source of a failed copy; raises StorageError where the source is right."""
    if not os.path.lexists(source):
        return Moved("missing", f"{source} is not there")
    proof = _readable(source, identity, progress)
    if proof.verdict == "invalid":
        return Moved("bad_source", proof.reason)
    raise StorageError(f"{reason}, but what was copied is right; check both disks and this machine's memory")


def _files(directory: Path) -> Iterator[str]:
    """Yields the files that belong to a set; a move ignores files that no list names."""
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
    """Puts back the set that an interrupted eviction took away, if all of it is in the trash."""
    for kept in _in_trash(trash, identity):
        with contextlib.suppress(FileNotFoundError, ManifestInvalid):
            if all((kept / name).exists() for name in _files(kept)):
                move_durably(kept, hot)
                return True
    return False


def _empty(trash: Path, identity: Identity) -> None:
    for kept in _in_trash(trash, identity):
        remove_tree(kept)
