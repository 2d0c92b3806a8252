"""Quarantine: the bad thing beside a record of why, within a budget. Run by workers: it moves big files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.transfer import Progress, move
from stoker.store.errors import DataError
from stoker.store.files import make_dir, remove_tree, unlink_durably
from stoker.store.names import utc_now
from stoker.store.record import read_record, write_record

REASON = "reason.json"


def quarantine(
    directory: Path,
    kind: str,
    name: str,
    thing: Path | None,
    reason: Mapping[str, Any],
    *,
    budget_bytes: int,
    progress: Progress = lambda _: None,
) -> Path:
    """Move `thing` into its own folder <kind>-<name>-<time> below `directory`, after the reason is durable.

    Done twice for the same finding (an interrupted try), it completes the folder that is there. Only the
    newest things that together fit into budget_bytes are kept; every reason stays.
    """
    folder = _open_folder(directory, kind, name, reason)
    if thing is not None and os.path.lexists(thing):
        if _bytes_of(thing) > budget_bytes:
            _discard(thing)
        else:
            _keep(thing, folder, progress)
            _trim(directory, kind, budget_bytes, newest=folder)
    return folder


def _open_folder(directory: Path, kind: str, name: str, reason: Mapping[str, Any]) -> Path:
    body = {"v": 1, "kind": kind, "path": None, "sha256": None, **reason}
    for folder in sorted(directory.glob(f"{kind}-{name}-*"), reverse=True):
        try:
            known = read_record(folder / REASON)
        except (FileNotFoundError, DataError):
            continue
        if all(known.get(field) == value for field, value in body.items()):
            return folder
    time = utc_now()
    folder = directory / f"{kind}-{name}-{time.replace('-', '').replace(':', '')}"
    make_dir(folder)
    write_record(folder / REASON, {**body, "time": time})
    return folder


def _keep(thing: Path, folder: Path, progress: Progress) -> None:
    if stat.S_ISDIR(os.lstat(thing).st_mode):
        # A folder on another file system is kept file by file.
        target = folder / thing.name
        make_dir(target)
        for file in sorted(thing.rglob("*")):
            if file.is_file():
                make_dir((target / file.relative_to(thing)).parent)
                _keep_file(file, target / file.relative_to(thing), progress)
        _discard(thing)
    else:
        _keep_file(thing, folder / thing.name, progress)


def _keep_file(file: Path, target: Path, progress: Progress) -> None:
    if target.exists():  # whole, for it got its name by a rename: an earlier try only did not remove the file
        _discard(file)
    else:
        move(file, target, progress)


def _discard(thing: Path) -> None:
    if stat.S_ISDIR(os.lstat(thing).st_mode):
        remove_tree(thing)
    else:
        unlink_durably(thing)


def _trim(directory: Path, kind: str, budget_bytes: int, newest: Path) -> None:
    folders = [folder for folder in directory.glob(f"{kind}-*") if folder != newest and folder.is_dir()]
    left = budget_bytes - _bytes_of(newest)
    for folder in sorted(folders, key=lambda each: each.stat().st_mtime_ns, reverse=True):
        left -= _bytes_of(folder)
        if left < 0:
            for thing in folder.iterdir():
                if thing.name != REASON:
                    _discard(thing)


def _bytes_of(thing: Path) -> int:
    if not thing.is_dir():
        return thing.stat().st_size
    return sum(file.stat().st_size for file in thing.rglob("*") if file.is_file())
