"""Worker: hashes and wholly decodes a quarantined source file again, both past the page cache.

task: {"home": a directory that is empty only where the source's disk is not mounted,
       "origin": the source's file | null, "kept": the copy in quarantine | null,
       "target": its path on hot | null to judge only,
       "size", "sha256", "text_column", "columns": {name: kind}, "floor",
       "decode": false to hash only, "disks": [the marks of the disks it may write to]}
messages: {"kind": "progress"}
result: {"status": "good", "place": "origin" | "kept", "cached"}: it may be built. A kept copy without its
        origin is copied to the target, too.
        {"status": "bad", "reason", "row_group", "column", "detail"}: the same content, and still bad
        {"status": "changed", "sha256"}: the source's file is not the file that was quarantined
        {"status": "gone"}: neither the source's file nor a copy of it exists
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.corpus.readers.reader import reader_of
from stoker.corpus.readers.table import Tokens
from stoker.corpus.staging.stage_worker import Wanted, bring, why_away
from stoker.kit.workers.child import give_way, heartbeat, run_worker
from stoker.store.direct import FileHash, hash_file
from stoker.store.errors import Transient, UnavailableError
from stoker.store.files import make_dir, opened

Progress = Callable[[int], None]


def main(task: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Finds the file that was quarantined, and judges it."""
    say = heartbeat(report, "quarantined file")
    origin, kept = (None if task[name] is None else Path(task[name]) for name in ("origin", "kept"))
    wanted, there = task["sha256"], _hash(origin, say)
    if there is not None and there.sha256 == wanted:
        place, path, found = "origin", origin, there
    elif (copy := _hash(kept, say)) is not None and copy.sha256 == wanted:
        place, path, found = "kept", kept, copy
    elif there is not None:
        return {"status": "changed", "sha256": there.sha256}
    elif reason := why_away(Path(task["home"])):
        raise UnavailableError(reason)
    else:
        return {"status": "gone"}
    assert path is not None  # it was hashed
    if task["decode"]:
        pa.set_cpu_count(1)
        flaw = reader_of(path).preflight(
            path,
            task["text_column"],
            task["columns"],
            tokens=Tokens.of(task),
            decode=True,
            progress=say,
            past_cache=True,
        )
        if flaw is not None:
            return {"status": "bad", **flaw.fields()}
    if place == "kept" and task["target"] is not None:
        _take(path, Path(task["target"]), task, say)
    return {"status": "good", "place": place, "cached": found.cached}


def _take(kept: Path, target: Path, task: dict[str, Any], say: Progress) -> None:
    """Copies a kept file to hot, where staging finds it: the source's own file is gone."""
    make_dir(target.parent)
    if not target.exists():
        with opened(kept, os.O_RDONLY | os.O_NOFOLLOW) as source:
            wanted = Wanted(task["sha256"], task["size"], task["floor"])
            brought = bring(source, target, wanted, lambda _, done: say(done))
        if brought.sha256 != task["sha256"]:
            raise Transient(f"{kept} reads differently each time; check the disk it lies on")


def _hash(path: Path | None, say: Progress) -> FileHash | None:
    """Returns the file's hash; None where there is no file."""
    if path is None:
        return None
    try:
        return hash_file(path, progress=say)
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    give_way()
    run_worker(main, stop_anywhere=True)
