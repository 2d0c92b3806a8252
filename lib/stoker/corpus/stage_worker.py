"""Worker: bring one source file to hot, hash what arrived, look at its footer.

task: {"file", "size", "sha256", "target", "text_column", "columns": [...], "floor", "decode"}
messages: {"kind": "progress", "bytes"}, then {"kind": "preflight"}, then {"kind": "progress", "row_groups"}
result: {"status": "staged", "how": "link" | "copy" | "kept", "cached"},
        {"status": "bad", "reason", "row_group", "column", "detail"}: at the target, but not to be built,
        {"status": "mismatch", "sha256"}: not what the receipt says, nothing is at the target,
        {"status": "missing"}: the source file is not there
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.corpus.preflight import preflight
from stoker.corpus.transfer import bring
from stoker.kit.worker_main import Report, run_worker
from stoker.store.errors import Transient
from stoker.store.files import make_dir, move_durably, unlink_durably
from stoker.store.hashing import hash_file


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Stage the file and judge it."""
    target = Path(task["target"])

    def progress(done: int) -> None:
        report("progress", bytes=done)

    make_dir(target.parent)
    how, cached = "kept", False
    if target.exists():
        kept = hash_file(target, progress=progress)
        cached = kept.cached
        if kept.sha256 != task["sha256"]:
            unlink_durably(target)
    if not target.exists():
        temporary = target.with_name(f".tmp-{target.name}")
        try:
            how = bring(Path(task["file"]), temporary, progress, task["floor"])
        except FileNotFoundError:
            return {"status": "missing"}
        found = hash_file(temporary, progress=progress)
        cached = found.cached
        if (found.sha256, found.size) != (task["sha256"], task["size"]):
            unlink_durably(temporary)
            return {"status": "mismatch", "sha256": found.sha256}
        move_durably(temporary, target)
    report("preflight")
    flaw = preflight(
        target,
        task["text_column"],
        task["columns"],
        decode=task["decode"],
        progress=lambda groups: report("progress", row_groups=groups),
    )
    if flaw is not None:
        # The footer was read through the page cache: it convicts only if the cache holds what was hashed.
        if hash_file(target, past_cache=False, progress=progress).sha256 != task["sha256"]:
            raise Transient(f"{target}: the page cache and the disk disagree; check this machine's memory")
        return {"status": "bad", **flaw.fields()}
    return {"status": "staged", "how": how, "cached": cached}


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
