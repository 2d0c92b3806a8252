"""What is done to the mirror beside everything else: copies, newest first, then pruning."""

from __future__ import annotations

from collections.abc import Collection

from stoker.checkpoints.mirror.layout import Mirrored, superfluous, waiting
from stoker.checkpoints.retention import RetentionPolicy
from stoker.checkpoints.select import History
from stoker.supervise.actions import CopyToMirror, ListMirror, MirrorJob, PruneMirror
from stoker.supervise.mirror.state import MirrorState


def next_job(
    mirror: MirrorState, local: Collection[Mirrored], history: History, policy: RetentionPolicy, now: float
) -> MirrorJob | None:
    """The job to start, None where nothing is to be done now; `local` are the proven checkpoints here."""
    if now < mirror.retry_at:
        return None
    if now >= mirror.look_at:
        return ListMirror()
    if queue := waiting(local, mirror.copies, history, policy):
        return CopyToMirror(queue[0])
    names = _unwanted(mirror, history, policy)
    return PruneMirror(names) if names and now >= mirror.prune_at else None


def is_settled(
    mirror: MirrorState, local: Collection[Mirrored], history: History, policy: RetentionPolicy, now: float
) -> bool:
    """Whether nothing is left to do, or nothing can be done now."""
    if mirror.trouble is not None:
        return True
    is_due = now >= mirror.prune_at and _unwanted(mirror, history, policy)
    return not (waiting(local, mirror.copies, history, policy) or is_due)


def _unwanted(mirror: MirrorState, history: History, policy: RetentionPolicy) -> tuple[str, ...]:
    """The copies that may go: none before the newest was proven in the mirror."""
    newest = mirror.newest(history)
    if newest is None or newest.name not in mirror.proven:
        return ()
    return tuple(one.name for one in superfluous(mirror.copies, history, policy, newest))
