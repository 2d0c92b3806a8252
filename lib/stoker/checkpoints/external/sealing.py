"""Seals a checkpoint that a trainer of the user's own has written: copied, hashed while copied, and renamed.

A crash leaves a whole sealed checkpoint or none. What changes while it is copied is not sealed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import Outside, Refused, look_at
from stoker.checkpoints.external.saves import SealedSave, inside
from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY
from stoker.checkpoints.seal import CheckpointWriter
from stoker.store.direct import Progress, hash_file
from stoker.store.errors import Transient
from stoker.store.files import NotPlain, file_beneath


class Changed(Transient):
    """The checkpoint changed while it was copied: the next look takes it."""


def seal_outside(
    one: Outside,
    checkpoints: Path,
    body: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    directory: Path,
    logs: Mapping[str, bytes],
    replaces: tuple[Path, Path] | None = None,
    progress: Progress,
) -> SealedSave:
    """Copies a checkpoint as `body["step"]` into `checkpoints`; returns the sealed save.

    `known` joins `external` of checkpoint.json, `logs` are plan and timelines up to here. `replaces` is the
    sealed checkpoint that makes room for this one, and where it goes.

    Raises Changed, Refused where its paths are too long, StorageError (no room, I/O) and DataError where
    another checkpoint has the step.
    """
    try:
        with CheckpointWriter(checkpoints, body["step"], known["launch"]) as writer:
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
            body = {**body, "external": {**_external(one, directory), **known}}
            sealed = writer.seal(body, replaces=replaces)
    except OSError as problem:
        if problem.errno == errno.ENAMETOOLONG:
            raise Refused(f"{one.path} has a path that is too long below {checkpoints}") from problem
        raise
    save = SealedSave.of(sealed, {**body, "files": writer.listed}, directory)
    assert save is not None
    return save


def _external(one: Outside, directory: Path) -> dict[str, Any]:
    """Returns where the checkpoint was, and what a restoration puts back."""
    path = one.path.relative_to(directory) if one.path.is_relative_to(directory) else one.path
    files = {name: [found.mtime_ns, found.mode] for name, found in one.files.items()}
    return {"path": str(path), "kind": one.kind, "mark": one.mark, "files": files}


def is_copy(one: Outside, saves: Iterable[SealedSave], progress: Progress) -> bool:
    """Returns whether a checkpoint has the very files of a sealed one, under another name."""
    sizes = {inside(name): state.size for name, state in one.files.items()}
    alike = [
        save for save in saves if {inside(name): size for name, (size, _) in save.files.items()} == sizes
    ]
    if not alike:
        return False
    hashes = {inside(name): hash_file(one.path.parent / name, progress=progress).sha256 for name in one.files}
    return any({inside(name): digest for name, digest in save.hashes.items()} == hashes for save in alike)


def _copy(writer: CheckpointWriter, root: Path, name: str, size: int, progress: Progress) -> None:
    try:
        with file_beneath(root, name) as source:
            writer.add_copy(name, source, size, progress)
    except (FileNotFoundError, NotPlain) as problem:
        raise Changed(f"{root / name} is not what it was: {problem}") from problem
