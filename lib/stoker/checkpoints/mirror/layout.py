"""The mirror of a run's checkpoints on the warm disk: its names, a cheap look at it, and the next steps.

    <warm>/checkpoints/<run>/t<timeline>/step-000001000-<first 8 hex of checkpoint.json's sha256>/
    <warm>/checkpoints/<run>/heldout-<first 8 hex of its sha256>.bin
    <warm>/checkpoints/<run>/{metrics,launches,runs}-<run id>.jsonl

Two versions of one step, on another timeline or with another content, have two names. A copy was proven past
the cache before it got its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import BODY, checkpoint_name, read_body
from stoker.checkpoints.retention import History, RetentionPolicy, counts, prune
from stoker.kit.lock import read_contents
from stoker.store.errors import DataError, UnavailableError, UnknownFormat, storage_errors
from stoker.store.layout import WarmLayout

MARK_HEX = 8
_NAME = re.compile(r"t(0|[1-9]\d*)/step-(\d{9}|[1-9]\d{9,})-([0-9a-f]{8})")


@dataclass(frozen=True)
class Mirrored:
    """A copy as a look finds it: from its name and from its unproven checkpoint.json."""

    timeline: int
    step: int
    mark: str  # first 8 hex of checkpoint.json's sha256
    run_id: str | None = None  # None where checkpoint.json is unreadable: the copy's proof will name the flaw
    val_loss: float | None = None

    @staticmethod
    def of(raw: Mapping[str, Any], digest: str) -> Mirrored:
        """Returns the copy of a checkpoint, from its checkpoint.json and that file's sha256."""
        loss = raw.get("val_loss")
        return Mirrored(
            raw["timeline"],
            raw["step"],
            digest[:MARK_HEX],
            str(raw.get("run_id")),
            float(loss) if isinstance(loss, int | float) else None,
        )

    @staticmethod
    def parse(body: Mapping[str, Any]) -> Mirrored:
        """Parses a copy in mirror.json or in the worker's answer."""
        return Mirrored(body["timeline"], body["step"], body["mark"], body["run_id"], body["val_loss"])

    @property
    def name(self) -> str:
        """Its path below the run's mirror."""
        return f"t{self.timeline}/{checkpoint_name(self.step)}-{self.mark}"


def heldout_name(sha256: str) -> str:
    """Returns the name of the held-out windows' copy in the run's mirror."""
    return f"heldout-{sha256[:MARK_HEX]}.bin"


def log_name(log: Path, run_id: str) -> str:
    """Returns the name of the copy of one of the run's logs in its mirror."""
    return f"{log.stem}-{run_id}{log.suffix}"


def require_ours(warm: WarmLayout, mirror: Path, owner: str, *, expected: bool) -> None:
    """Raises UnavailableError unless warm is mounted and ours: an unmounted disk leaves an empty folder.

    `owner` is the pipeline's name; `expected`: the mirror had files before.
    """
    with storage_errors("read", warm.root):
        if not warm.root.is_dir():
            raise UnavailableError(f"{warm.root} is not there; mount the disk: it continues by itself")
        if expected and not mirror.is_dir():
            raise UnavailableError(
                f"{mirror} is not there, but checkpoints were copied there before; mount the disk, or, if "
                f"what it held is lost, make that directory: everything is copied again"
            )
    holder = read_contents(warm.owner_lock).purpose
    if holder.startswith("pipeline ") and not holder.startswith(f"pipeline {owner} "):
        raise UnavailableError(
            f"{warm.root} is another's: {holder}; give this pipeline a `warm:` of its own, or, if that one "
            f"is gone, remove {warm.owner_lock}"
        )


def list_mirror(root: Path) -> list[Mirrored]:
    """Returns every copy in a run's mirror, in no order; none where it is missing. Raises OSError."""
    try:
        folders = [folder.name for folder in os.scandir(root) if folder.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    names = (f"{folder}/{entry.name}" for folder in folders for entry in os.scandir(root / folder))
    matches = map(_NAME.fullmatch, names)
    return [_look(root, int(match[1]), int(match[2]), match[3]) for match in matches if match]


def waiting(
    local: Iterable[Mirrored], there: Collection[Mirrored], history: History, policy: RetentionPolicy
) -> list[Mirrored]:
    """Returns the missing copies of proven checkpoints of this history, newest first.

    A checkpoint that the mirror's retention would remove at once is not copied.
    """
    have = {one.name for one in there if one.run_id is not None}
    wanted = [one for one in local if counts(one.timeline, one.step, history) and one.name not in have]
    losses = _on_history(there, history) | {one.step: one.val_loss for one in wanted}
    gone = set(prune(losses, policy))
    return sorted((one for one in wanted if one.step not in gone), key=lambda one: -one.step)


def superfluous(
    there: Collection[Mirrored], history: History, policy: RetentionPolicy, proven: Collection[str]
) -> list[Mirrored]:
    """Returns the copies that may leave; none unless the newest copy of this history is among the `proven`.

    Of this history: those that retention does not keep. Of abandoned timelines: those past the fork, once the
    mirror has a copy of a later timeline; until then an operator may still undo the rollback.
    """
    newest = next(iter(fallback(there, history, -1)), None)
    if newest is None or newest.name not in proven:
        return []
    gone = set(prune(_on_history(there, history), policy))
    return [
        one
        for one in sorted(there, key=lambda one: (one.timeline, one.step))
        if one.run_id is not None
        and (one.step in gone if counts(one.timeline, one.step, history) else one.timeline < newest.timeline)
    ]


def fallback(there: Iterable[Mirrored], history: History, above: int) -> list[Mirrored]:
    """Returns the copies of this history newer than step `above`, newest first: to be tried in this order."""
    usable = [one for one in there if one.step > above and counts(one.timeline, one.step, history)]
    return sorted(usable, key=lambda one: (-one.step, -one.timeline, one.mark))


def _on_history(there: Iterable[Mirrored], history: History) -> dict[int, float | None]:
    """Returns loss by step of the copies.

    A copy without a readable checkpoint.json neither counts nor leaves.
    """
    usable = (one for one in there if one.run_id is not None and counts(one.timeline, one.step, history))
    return {one.step: one.val_loss for one in usable}


def _look(root: Path, timeline: int, step: int, mark: str) -> Mirrored:
    bare = Mirrored(timeline, step, mark)
    try:
        body = read_body((root / bare.name / BODY).read_bytes())
    except (FileNotFoundError, DataError, UnknownFormat):
        return bare
    return replace(Mirrored.of(body.raw, mark), timeline=timeline, step=step)
