"""Which checkpoint a run resumes from, which may go, and a removal that leaves no half checkpoint.

A run resumes from the newest proven checkpoint on the current timeline's ancestry. A reader holds a shared
flock on the directory; a removal looks for one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.format import (
    BODY,
    PRUNED,
    TEMPORARY,
    CheckpointBody,
    checkpoint_name,
    read_body,
    step_of,
)
from stoker.kit.lock import still_named
from stoker.store.errors import DataError, UnknownFormat, storage_errors
from stoker.store.files import move_durably, opened, remove_tree


@dataclass(frozen=True)
class Kept:
    """A proven checkpoint; `read` while someone reads it."""

    step: int
    val_loss: float | None = None
    read: bool = False


@dataclass(frozen=True)
class RetentionPolicy:
    """The last N, every K steps, the milestones, and the best N by held-out loss are kept."""

    keep_last: int = 3
    keep_every: int | None = None
    milestones: frozenset[int] = frozenset()
    keep_best: int = 1


def prune(checkpoints: Collection[Kept], policy: RetentionPolicy) -> list[int]:
    """Steps to remove of proven checkpoints, oldest first: never the newest, and none that is being read."""
    proven = sorted(checkpoints, key=lambda one: one.step)
    kept = {one.step for one in proven[-max(1, policy.keep_last) :]}
    measured = sorted((one for one in proven if one.val_loss is not None), key=_best_first)
    kept |= {one.step for one in measured[: policy.keep_best]}
    kept |= {one.step for one in proven if policy.keep_every and one.step % policy.keep_every == 0}
    return [one.step for one in proven if one.step not in kept | policy.milestones and not one.read]


def remove_checkpoint(path: Path) -> bool:
    """Take a checkpoint's name away by one rename, then its files; a crash leaves a sweepable rest.

    False, with nothing done, while somebody reads it.
    """
    condemned = path.parent / f"{PRUNED}{path.name}"
    with storage_errors("open", path), unread(path) as free:
        if not free:
            return False
        remove_tree(condemned)
        move_durably(path, condemned)
    remove_tree(condemned)
    return True


def sweep_leftovers(checkpoints_dir: Path) -> list[str]:
    """Remove what interrupted seals and removals left; only for the owner of the run's trainer lock."""
    try:
        names = sorted(entry.name for entry in os.scandir(checkpoints_dir))
    except FileNotFoundError:
        return []
    leftovers = [name for name in names if name.startswith((TEMPORARY, PRUNED))]
    for name in leftovers:
        remove_tree(checkpoints_dir / name)
    return leftovers


def _best_first(one: Kept) -> tuple[float, int]:
    return (one.val_loss if one.val_loss is not None else float("inf"), -one.step)


_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO)  # some network mounts
_GONE = "{} was moved away while it was being opened"


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Keep a checkpoint from being pruned while the block reads it; raises OSError where it cannot be opened.

    On a file system without locks the block reads all the same: what it finds is proven by its hashes.
    """
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        _lock(descriptor, fcntl.LOCK_SH)  # whoever holds it alone does so for one rename
        if not still_named(directory, descriptor):
            raise FileNotFoundError(errno.ENOENT, _GONE.format(directory), str(directory))
        yield


@contextlib.contextmanager
def unread(directory: Path) -> Iterator[bool]:
    """Whether nobody reads a checkpoint now; if so nobody can begin to for the length of the block."""
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _lock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


History = Sequence[tuple[int, int | None]]  # (timeline, last step of it that counts or None), newest first


@dataclass(frozen=True)
class Found:
    """A checkpoint directory before any proof; `body` is None where checkpoint.json is no help."""

    path: Path
    step: int
    body: CheckpointBody | None

    @property
    def timeline(self) -> int | None:
        return None if self.body is None else self.body.timeline


def find_checkpoints(checkpoints_dir: Path) -> list[Found]:
    """Directories with a checkpoint's name, in no order; a missing directory has none."""
    try:
        names = [entry.name for entry in os.scandir(checkpoints_dir) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    steps = {name: step_of(name) for name in names}
    return [
        Found(checkpoints_dir / name, step, _body(checkpoints_dir / name))
        for name, step in steps.items()
        if step is not None and name == checkpoint_name(step)
    ]


def candidates(found: Iterable[Found], history: History) -> list[Found]:
    """Those to prove, newest first, until one is proven; one whose timeline cannot be told is among them.

    What a candidate's proof says of its timeline is decided by `counts`.
    """
    usable = [one for one in found if one.timeline is None or counts(one.timeline, one.step, history)]
    return sorted(usable, key=lambda one: -one.step)


def abandoned(found: Iterable[Found], history: History) -> list[Found]:
    """Those that lie past a fork: a rollback that was interrupted has yet to move them away."""
    return [one for one in found if one.timeline is not None and not counts(one.timeline, one.step, history)]


def counts(timeline: int, step: int, history: History) -> bool:
    """Whether a step made on a timeline belongs to the history."""
    return any(timeline == number and (upto is None or step <= upto) for number, upto in history)


def _body(path: Path) -> CheckpointBody | None:
    try:
        return read_body((path / BODY).read_bytes())
    except (OSError, DataError, UnknownFormat):
        return None  # its proof will say what is wrong
