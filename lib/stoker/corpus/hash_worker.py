"""Worker: the sha256 of one source file, only if the file stayed as it was looked at.

task: {"root", "path", "size", "mtime_ns", "inode"}; messages: {"kind": "progress", "bytes"}
result: {"status": "hashed", "sha256", "size", "cached"}, {"status": "changed"} or {"status": "missing"}
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stoker.kit.worker_main import Report, run_worker
from stoker.store.hashing import hash_file
from stoker.store.names import inside


class _GrownError(Exception):
    """There is more of the file than was looked at."""


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Look, hash, look again."""
    file = inside(Path(task["root"]), task["path"])
    looked_at = (task["size"], task["mtime_ns"], task["inode"])

    def progress(done: int) -> None:
        report("progress", bytes=done)
        if done > task["size"]:  # somebody is appending: reading on might never end
            raise _GrownError

    try:
        if _look(file) != looked_at:
            return {"status": "changed"}
        found = hash_file(file, progress=progress)
        if _look(file) != looked_at or found.size != task["size"]:
            return {"status": "changed"}
    except _GrownError:
        return {"status": "changed"}
    except FileNotFoundError:
        return {"status": "missing"}
    return {"status": "hashed", "sha256": found.sha256, "size": found.size, "cached": found.cached}


def _look(file: Path) -> tuple[int, int, int]:
    # Never through a link: its target is not what the lister saw.
    stat = os.lstat(file)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
