"""Restores a sealed checkpoint to the path that its trainer reads, while no trainer runs.

Order: a whole copy under a temporary name, durable; what lies at the path put aside (`names.aside_of`); the
copy renamed to the path. After a crash the next restoration finds the path right, or does it again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from stoker.checkpoints.external.find import Refused, look_at, path_of
from stoker.checkpoints.external.names import aside_of, put_aside_at
from stoker.checkpoints.format import FILES, folders_of
from stoker.checkpoints.retention import reading
from stoker.checkpoints.seal import copy_hashed
from stoker.store.direct import Progress, hash_file
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import (
    drop_first,
    file_beneath,
    fsync_tree,
    inside,
    make_dir,
    move_durably,
    remove_durably,
)

TEMPORARY = ".tmp-stoker-"  # one for each run and directory: the next restoration removes it


class Restored(NamedTuple):
    """The result: whether the path had to be written, and where what lay there is now."""

    path: Path
    is_written: bool
    aside: Path | None


def restore(
    sealed: Path, body: Mapping[str, Any], directory: Path, *, run_id: str, at: str, progress: Progress
) -> Restored:
    """Makes the trainer's path hold a proven checkpoint; `body` is its checkpoint.json, `at` a new id.

    Raises StorageError (no room, I/O), DataError where the sealed files are not the proven ones any more.
    """
    path = path_of(body, directory)
    assert path is not None
    temporary = path.parent / f"{TEMPORARY}{run_id}"
    with reading(sealed):
        if path.parent.is_dir():
            remove_durably(temporary)
        if _is_equal(path, body, progress):
            return Restored(path, False, None)
        with storage_errors("restore", path):
            make_dir(temporary)
            _write(sealed, body, temporary, progress)
            fsync_tree(temporary)
        aside = put_aside(path, at) if os.path.lexists(path) else None
        move_durably(temporary / path.name, path)
        remove_durably(temporary)
    return Restored(path, True, aside)


def put_aside(path: Path, at: str) -> Path:
    """Renames a file or directory of the trainer's to one that no trainer takes; returns its new path."""
    aside = aside_of(path, at)
    move_durably(path, aside)
    return aside


def drop_asides(
    folders: Iterable[Path], *, but: Collection[Path], keep: int, keep_bytes: int, begun: float
) -> list[Path]:
    """Removes what was put aside in these directories until both limits hold, the oldest first.

    What was put aside just now (`but`) stays in any case, and what is older than the run, which `begun` at
    that Unix time and has not made it.
    """
    ours = list[tuple[str, Path]]()
    for folder in {folder for folder in folders if folder.is_dir()}:
        for entry in os.scandir(folder):
            at, path = put_aside_at(entry.name), Path(entry.path)
            if at is None or path in but or path.lstat().st_mtime < begun:
                continue
            if not entry.name.startswith("."):  # a name of before, which transformers 4 takes for its newest
                move_durably(path, path := aside_of(path.with_name(entry.name.rpartition(".before-")[0]), at))
            ours.append((at, path))
    return drop_first([path for _, path in sorted(ours)], keep=keep, keep_bytes=keep_bytes)


def _write(sealed: Path, body: Mapping[str, Any], into: Path, progress: Progress) -> None:
    listed, proven = body["external"]["files"], body["files"]
    for folder in folders_of(listed):
        make_dir(into / folder)
    for name, (mtime_ns, mode) in listed.items():
        with file_beneath(sealed, f"{FILES}/{name}") as source:
            size = os.fstat(source).st_size
            entry = copy_hashed(source, target := inside(into, name), size, progress)
        if entry.sha256 != proven[f"{FILES}/{name}"]["sha256"]:
            raise DataError(f"{sealed / FILES / name} is not what was proven any more")
        target.chmod(mode)
        os.utime(target, ns=(mtime_ns, mtime_ns))


def _is_equal(path: Path, body: Mapping[str, Any], progress: Progress) -> bool:
    """Returns whether the path holds the files of a sealed checkpoint and no other, read past the cache."""
    try:
        found = look_at(path)
    except (FileNotFoundError, NotADirectoryError, Refused):
        return False
    proven = body["files"]
    wanted = {name: proven[f"{FILES}/{name}"] for name in body["external"]["files"]}
    if {name: one.size for name, one in found.files.items()} != {
        name: one["size"] for name, one in wanted.items()
    }:
        return False

    def is_right(name: str) -> bool:
        found = hash_file(path.parent / name, progress=progress)
        return found.sha256 == str(wanted[name]["sha256"])

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return all(pool.map(is_right, wanted))
