"""Which checkpoints may go: a pure decision, and the removal that never leaves half a checkpoint behind."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.format import PRUNED, TEMPORARY
from stoker.checkpoints.reading import unread
from stoker.store.errors import storage_errors
from stoker.store.files import move_durably, remove_tree


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
