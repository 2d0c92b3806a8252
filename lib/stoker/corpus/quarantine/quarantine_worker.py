"""Worker: moves a bad file or set from hot into the state's quarantine, beside a record of the reason.

rules.py decides how long it stays and whether it may be released.

task: {"directory", "kind", "name", "thing": path, "reason": {...}, "budget_bytes"}
result: {"folder"}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.quarantine.directory import REASON, mark, open_folder
from stoker.kit.workers.child import Report, run_worker
from stoker.store.direct import Progress, move
from stoker.store.errors import FULL, StorageError
from stoker.store.files import make_dir, remove_durably, tree_bytes

TOO_LARGE = "it is larger than quarantine.keep_bytes"
NO_ROOM = "the state disk had no space for it"


def quarantine(
    directory: Path,
    kind: str,
    name: str,
    thing: Path,
    reason: Mapping[str, Any],
    *,
    budget_bytes: int,
    progress: Progress = lambda _: None,
) -> Path:
    """Moves `thing` into a folder <kind>-<name>-<time> below `directory`, after the reason is durable.

    A second call for the same finding (after an interrupted try) completes the folder of the first. A thing
    that alone exceeds the budget, or for which the disk has no room, is deleted; its reason says so.
    """
    folder = open_folder(directory, kind, name, reason)
    if not os.path.lexists(thing):
        return folder
    size = tree_bytes(thing)
    why = TOO_LARGE if size > budget_bytes else ""
    try:
        if not why:
            _keep(thing, folder, progress)
    except StorageError as error:
        if error.errno not in FULL:
            raise
        why = NO_ROOM
    if why:  # the mark comes before the deletion, so that the event is recorded even after a crash
        mark(folder, dropping={"why": why, "bytes": size})
        for part in (*(part for part in folder.iterdir() if part.name != REASON), thing):
            remove_durably(part)
    return folder


def _keep(thing: Path, folder: Path, progress: Progress) -> None:
    """Moves a file, or a directory file by file, because the quarantine may be on another file system."""
    is_folder = thing.is_dir() and not thing.is_symlink()
    for file in sorted(each for each in thing.rglob("*") if each.is_file()) if is_folder else (thing,):
        target = folder / file.relative_to(thing.parent)
        make_dir(target.parent)
        # A file under its name is whole: an earlier try only failed to remove the source.
        if not target.exists():
            move(file, target, progress)
    remove_durably(thing)


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    folder = quarantine(
        Path(task["directory"]),
        task["kind"],
        task["name"],
        Path(task["thing"]),
        task["reason"],
        budget_bytes=task["budget_bytes"],
        progress=lambda done: report("progress", bytes=done),
    )
    return {"folder": str(folder)}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
