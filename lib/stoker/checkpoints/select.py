"""Which checkpoint a run resumes from: the newest proven one on the current timeline's ancestry."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.format import BODY, CheckpointBody, checkpoint_name, read_body, step_of
from stoker.store.errors import DataError, UnknownFormat

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
