"""Seals a checkpoint that a trainer of the user's own has written: copied, hashed while copied, and renamed.

A crash leaves a whole sealed checkpoint or none. What changes while it is copied is not sealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import Outside, look_at, words_of
from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY
from stoker.checkpoints.seal import CheckpointWriter
from stoker.store.direct import Progress
from stoker.store.errors import Transient
from stoker.store.files import NotPlain, file_beneath


class Changed(Transient):
    """The checkpoint changed while it was copied: the next look takes it."""


def seal_outside(
    one: Outside,
    checkpoints: Path,
    body: Mapping[str, Any],
    *,
    directory: Path,
    launch: str,
    logs: Mapping[str, bytes],
    progress: Progress,
) -> Path:
    """Copies a checkpoint as `body["step"]` into `checkpoints`; returns the sealed directory.

    `logs` are plan and timelines up to here. Raises Changed, StorageError (no room, I/O) and DataError where
    another checkpoint has the step.
    """
    with CheckpointWriter(checkpoints, body["step"], launch) as writer:
        for name, state in sorted(one.files.items()):
            _copy(writer, one.path.parent, name, state.size, progress)
        try:
            is_same = look_at(one.path) == one
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise Changed(f"{one.path} changed while it was copied")
        for name in (PLAN_COPY, TIMELINES_COPY):
            writer.add(name, [logs[name]])
        return writer.seal({**body, "external": words_of(one, directory, launch)})


def _copy(writer: CheckpointWriter, root: Path, name: str, size: int, progress: Progress) -> None:
    try:
        with file_beneath(root, name) as source:
            writer.add_copy(name, source, size, progress)
    except (FileNotFoundError, NotPlain) as problem:
        raise Changed(f"{root / name} is not what it was: {problem}") from problem
