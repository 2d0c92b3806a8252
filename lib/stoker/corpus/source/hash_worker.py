"""Worker: the sha256 of source files, one after the other, each only if it is unchanged since its look.

It gives way to other processes, on the CPUs and on the disk.

task: {"root", "path", "size", "mtime_ns", "inode"}; messages: {"kind": "hashed", "bytes"}
result: {"status": "hashed", "sha256", "size", "cached"}, {"status": "changed"} or {"status": "missing"}
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.corpus.source.idle_io import Background, give_way
from stoker.kit.workers.child import Report, paced, run_worker
from stoker.store.direct import hash_opened
from stoker.store.errors import storage_errors
from stoker.store.files import NotPlain, file_beneath


class _GrownError(Exception):
    """The file is longer than at its look."""


class Hasher:
    """Runs tasks one after the other."""

    def __init__(self) -> None:
        give_way()
        self._background = Background()

    def __call__(self, task: dict[str, Any], report: Report) -> dict[str, Any]:
        """Hashes a file between two looks."""
        return hash_unchanged(task, report, self._background)


def hash_unchanged(
    task: dict[str, Any], report: Callable[..., None], background: Background
) -> dict[str, Any]:
    """Hashes one file: a worker's task and result, as above."""
    root, path = Path(task["root"]), task["path"]
    looked_at = (task["size"], task["mtime_ns"], task["inode"])
    tell = paced(lambda what, done: report(what, bytes=done))

    def progress(done: int) -> None:
        tell("hashed", done)
        if done > task["size"]:  # a program is appending: reading on might never end
            raise _GrownError

    try:
        with storage_errors("read", root / path), file_beneath(root, path) as file:
            if _look(file) != looked_at:
                return {"status": "changed"}
            found = hash_opened(file, progress=background.following(progress))
            # The bytes read are still the file's content, and the file still has that name.
            with file_beneath(root, path) as again:
                if not _look(file) == _look(again) == looked_at or found.size != task["size"]:
                    return {"status": "changed"}
    except (_GrownError, NotPlain):
        return {"status": "changed"}
    except FileNotFoundError:
        return {"status": "missing"}
    return {"status": "hashed", "sha256": found.sha256, "size": found.size, "cached": found.cached}


def _look(file: int) -> tuple[int, int, int]:
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns, found.st_ino


if __name__ == "__main__":
    run_worker(Hasher(), stop_anywhere=True, many=True)
