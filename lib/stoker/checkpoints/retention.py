"""Chooses the checkpoint to resume from and those to remove; removes without leaving half a checkpoint.

A run resumes from the newest proven checkpoint on the current timeline's ancestry. A reader holds a shared
flock on the directory; a removal checks for that lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stoker.checkpoints.format import (
    BODY,
    PRUNED,
    SUMS,
    TEMPORARY,
    CheckpointBody,
    checkpoint_name,
    read_body,
    read_sums,
    step_of,
)
from stoker.kit.lock import still_named
from stoker.store.errors import DataError, UnknownFormat, storage_errors
from stoker.store.files import move_durably, opened, remove_durably, unlink_durably


@dataclass(frozen=True)
class RetentionPolicy:
    """Keeps the last N, every K steps, the milestones, and the best N by held-out loss."""

    keep_last: int = 3
    keep_every: int | None = None
    milestones: frozenset[int] = frozenset()
    keep_best: int = 1


def prune(losses: Mapping[int, float | None], policy: RetentionPolicy) -> list[int]:
    """Returns the steps to remove, oldest first, never the newest; `losses` are held-out losses by step."""
    steps = sorted(losses)
    kept = {*steps[-max(1, policy.keep_last) :], *policy.milestones}
    best_first = sorted((loss, -step) for step, loss in losses.items() if loss is not None)
    kept |= {-step for _, step in best_first[: policy.keep_best]}
    kept |= {step for step in steps if policy.keep_every and step % policy.keep_every == 0}
    return [step for step in steps if step not in kept]


def remove_checkpoint(path: Path) -> bool:
    """Removes a checkpoint's name by one rename, then its files; a crash leaves a rest that a sweep finds.

    Returns False and changes nothing while a reader holds the checkpoint. In its place a
    file or a link is removed, never what the link points to.
    """
    condemned = path.parent / f"{PRUNED}{path.name}"
    with storage_errors("open", path):
        is_directory = path.is_dir() and not path.is_symlink()
    if not is_directory:
        unlink_durably(path)
        return True
    remove_durably(condemned)
    if not move_checkpoint(path, condemned):
        return False
    remove_durably(condemned)
    return True


def move_checkpoint(path: Path, target: Path) -> bool:
    """Renames a checkpoint durably; returns False and changes nothing while a reader holds it."""
    with storage_errors("open", path), opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        try:
            _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        move_durably(path, target)
    return True


def sweep_leftovers(checkpoints_dir: Path) -> list[str]:
    """Removes leftovers of interrupted seals and removals; only for the owner of the run's trainer lock."""
    try:
        names = sorted(entry.name for entry in os.scandir(checkpoints_dir))
    except FileNotFoundError:
        return []
    leftovers = [name for name in names if name.startswith((TEMPORARY, PRUNED))]
    for name in leftovers:
        remove_durably(checkpoints_dir / name)
    return leftovers


_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO)  # some network mounts
_GONE = "{} was moved away while it was being opened"


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Keeps a checkpoint from being pruned while the block reads it.

    Raises OSError where it cannot be opened.

    On a file system without locks the block reads all the same: the hashes prove the bytes.
    """
    with opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        _lock(descriptor, fcntl.LOCK_SH)  # an exclusive lock lasts for one rename only
        if not still_named(directory, descriptor):
            raise FileNotFoundError(errno.ENOENT, _GONE.format(directory), str(directory))
        yield


def _lock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


# (timeline, its last step that counts, or None for all), newest first
History = Sequence[tuple[int, int | None]]


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint directory before any proof.

    `body` is None where checkpoint.json is unreadable or not the one that SHA256SUMS names: a flipped bit
    in its timeline or position must not speak for the run's history.
    """

    path: Path
    step: int
    body: CheckpointBody | None

    @property
    def timeline(self) -> int | None:
        return None if self.body is None else self.body.timeline


def find_checkpoints(checkpoints_dir: Path) -> list[CheckpointEntry]:
    """Returns the directories with a checkpoint's name, in no order; none where the directory is missing."""
    try:
        names = [entry.name for entry in os.scandir(checkpoints_dir) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    steps = {name: step_of(name) for name in names}
    return [
        CheckpointEntry(checkpoints_dir / name, step, _body(checkpoints_dir / name))
        for name, step in steps.items()
        if step is not None and name == checkpoint_name(step)
    ]


def candidates(found: Iterable[CheckpointEntry], history: History) -> list[CheckpointEntry]:
    """Returns the checkpoints to prove in turn, newest first, including those of an unknown timeline.

    After the proof `counts` decides on the timeline that the proof found.
    """
    usable = [one for one in found if one.timeline is None or counts(one.timeline, one.step, history)]
    return sorted(usable, key=lambda one: -one.step)


def abandoned(found: Iterable[CheckpointEntry], history: History) -> list[CheckpointEntry]:
    """Returns the checkpoints past a fork: an interrupted rollback has yet to move them away."""
    return [one for one in found if one.timeline is not None and not counts(one.timeline, one.step, history)]


def counts(timeline: int, step: int, history: History) -> bool:
    """Whether a step made on a timeline belongs to the history."""
    return any(timeline == number and (upto is None or step <= upto) for number, upto in history)


def _body(path: Path) -> CheckpointBody | None:
    """Returns what a sealed checkpoint says of itself, None where that is not whole.

    A supervisor asks once a second, of a run that may keep hundreds: only what has changed is read.
    """
    try:
        found = [(path / name).stat() for name in (BODY, SUMS)]
    except OSError:
        return None
    return _read(path, tuple((one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found))


@lru_cache(maxsize=512)
def _read(path: Path, _state: tuple[tuple[int, ...], ...]) -> CheckpointBody | None:
    try:
        data = (path / BODY).read_bytes()
        is_sealed = read_sums((path / SUMS).read_bytes()).get(BODY) == hashlib.sha256(data).hexdigest()
        return read_body(data) if is_sealed else None
    except (OSError, DataError, UnknownFormat):
        return None  # the proof will name the flaw
