"""Worker: brings one source file to hot, hashes it and checks its footer.

task: {"root", "home", "file", "size", "sha256", "target", "text_column", "columns": {name: kind}, "floor",
    "decode"}; `file` is below `root`, the source folder or the landing; `home` is the folder itself or the
    directory that holds the landing, and is empty only while its disk is not mounted
messages: {"kind": "copied" | "hashed", "bytes"}, then {"kind": "preflight"}, then
    {"kind": "progress", "row_groups"}
result: {"status": "staged", "how": "link" | "copy" | "kept", "sha256", "cached", "resumed", "xxh3"},
        {"status": "bad", "reason", "row_group", "column", "detail"}: at the target, but not to be built,
        {"status": "mismatch", "sha256"}: other content than the receipt's; the target does not exist,
        {"status": "missing"}: the source file does not exist,
        {"status": "unavailable", "reason"}: the whole source folder cannot be read
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from stoker.corpus.staging.disk_contents import insist_on
from stoker.corpus.staging.preflight import preflight
from stoker.corpus.staging.staging import Brought, Wanted, bring, drop_partial, why_away
from stoker.kit.workers.child import Report, paced, run_worker
from stoker.store.direct import DiskFullError, hash_file
from stoker.store.errors import Transient, UnavailableError
from stoker.store.files import below, file_beneath, make_dir, unlink_durably


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Stages the file and checks it."""
    insist_on(task)
    target, root = Path(task["target"]), Path(task["root"])
    tell = paced(lambda what, done: report(what, bytes=done))
    make_dir(target.parent)
    brought = _kept(task, target, tell)
    if brought is None:
        try:
            brought = _bring(task, root, target, tell)
        except DiskFullError:
            raise
        except OSError as error:
            if reason := why_away(Path(task["home"])):
                return {"status": "unavailable", "reason": reason}
            if isinstance(error, FileNotFoundError):
                return {"status": "missing"}
            raise
        if brought.sha256 != task["sha256"]:
            return {"status": "mismatch", "sha256": brought.sha256}
    report("preflight")
    flaw = preflight(
        target,
        task["text_column"],
        task["columns"],
        decode=task["decode"],
        progress=lambda groups: report("progress", row_groups=groups),
    )
    if flaw is not None:
        # The footer was read through the page cache: it convicts only if the cache agrees with the hash.
        through = hash_file(target, past_cache=False, progress=lambda done: tell("hashed", done))
        if through.sha256 != task["sha256"]:
            raise Transient(f"{target}: the page cache and the disk disagree; check this machine's memory")
        return {"status": "bad", **flaw.fields()}
    return {"status": "staged", **asdict(brought)}


def _kept(task: dict[str, Any], target: Path, tell: Any) -> Brought | None:
    """Returns how a target that exists already was kept; deletes a target with other content."""
    try:
        xxh3 = xxhash.xxh3_128()
        found = hash_file(target, also=xxh3, progress=lambda done: tell("hashed", done))
    except FileNotFoundError:
        return None
    if found.sha256 != task["sha256"]:
        unlink_durably(target)
        return None
    drop_partial(target)  # an earlier try finished the copy, but was killed before this deletion
    return Brought("kept", found.sha256, found.cached, xxh3.hexdigest())


def _bring(task: dict[str, Any], root: Path, target: Path, tell: Any) -> Brought:
    relative = below(root, Path(task["file"]))
    if relative is None:
        raise UnavailableError(
            f"{task['file']} does not lie in {root}; its receipt is of another source folder and is renewed"
        )
    with file_beneath(root, relative) as source:
        return bring(source, target, Wanted(task["sha256"], task["size"], task["floor"]), tell)


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
