"""Worker: performs all work on warm for the train supervisor's mirror of checkpoints.

Each task has "verb", "warm", "run", "owner" (the pipeline's name) and "expected": the mirror had files
before, so that an empty folder in warm's place is no mirror. By verb:

list   {"run_id": str or null}
       -> {"copies": [{"timeline", "step", "mark", "run_id", "val_loss"}, ...], "foreign": [run ids],
           "timelines": the newest copy of timelines.jsonl, from proven small files, or null}
copy   {"source", "name", "digest", "heldout": {"path", "sha256"} or null, "logs": {"run_id", "paths"}}
       -> {"set_aside"}, or {"source_bad": reason}
fetch  {"name", "checkpoints", "logs": paths, copied back where they are missing or empty, "heldout": path}
       -> {"state": "fetched", "proof": the proof worker's result, "logs": the paths copied back,
           "heldout": "there" (already), "brought", "missing", "bad" or null},
          or {"state": "gone" | "bad", "reason", "set_aside"}
prune  {"names": [...]}     -> {"gone": [...]}

{"kind": "progress"} every few seconds shows that the worker is alive. Exits 69 when warm is not mounted
or is another pipeline's, 74 when it cannot be read or written now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import TIMELINES_COPY
from stoker.checkpoints.mirror.copy import (
    SourceBad,
    copy_checkpoint,
    copy_file,
    fetch_checkpoint,
    give_up,
    move_aside,
)
from stoker.checkpoints.mirror.layout import Mirrored, heldout_name, list_mirror, log_name, require_ours
from stoker.checkpoints.proof import Progress, prove_checkpoint
from stoker.checkpoints.proof_worker import as_message
from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.store.direct import hash_file
from stoker.store.errors import storage_errors
from stoker.store.files import make_dir
from stoker.store.layout import WarmLayout


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Performs the task's verb."""
    report("phase", phase=task["verb"])
    warm = WarmLayout(Path(task["warm"]))
    mirror = warm.checkpoints(task["run"])
    require_ours(warm, mirror, task["owner"], expected=task["expected"])
    tell = heartbeat(report, mirror.name)
    match task["verb"]:
        case "list":
            return _list(mirror, task["run_id"])
        case "copy":
            return _copy(task, mirror, warm.trash, tell)
        case "fetch":
            return _fetch(task, mirror, warm.trash, tell)
        case _:
            return {"gone": give_up(mirror, task["names"], warm.trash)}


def _list(mirror: Path, run_id: str | None) -> dict[str, Any]:
    with storage_errors("list", mirror):
        found = list_mirror(mirror)
    ours = [one for one in found if run_id is None or one.run_id in (None, run_id)]
    foreign = {one.run_id for one in found if one.run_id is not None} - {run_id}
    return {
        "copies": [asdict(one) for one in ours],
        "foreign": sorted(foreign),
        "timelines": _newest_timelines(mirror, ours),
    }


def _newest_timelines(mirror: Path, copies: list[Mirrored]) -> str | None:
    """Returns timelines.jsonl from a checkpoint of the latest timeline, which has every line so far."""
    for one in sorted(copies, key=lambda one: (-one.timeline, -one.step)):
        proof = prove_checkpoint(mirror / one.name, deep=False)
        if proof.body is not None and TIMELINES_COPY in proof.body.files:
            return (mirror / one.name / TIMELINES_COPY).read_text()
    return None


def _copy(task: Mapping[str, Any], mirror: Path, trash: Path, tell: Progress) -> dict[str, Any]:
    make_dir(mirror)
    # Logs and held-out windows come before the checkpoint: a mirrored checkpoint has its files beside it.
    for path in map(Path, task["logs"]["paths"]):
        copy_file(path, mirror / log_name(path, task["logs"]["run_id"]), tell)
    if (held := task["heldout"]) is not None:
        target = mirror / heldout_name(held["sha256"])
        if not target.exists() or hash_file(target).sha256 != held["sha256"]:
            with contextlib.suppress(SourceBad):  # the launch that reads the file reports it
                copy_file(Path(held["path"]), target, tell, held["sha256"])
    try:
        source, target = Path(task["source"]), mirror / task["name"]
        return {"set_aside": copy_checkpoint(source, target, task["digest"], trash, tell)}
    except SourceBad as problem:
        return {"source_bad": str(problem)}


def _fetch(task: Mapping[str, Any], mirror: Path, trash: Path, tell: Progress) -> dict[str, Any]:
    copied = mirror / task["name"]
    if not copied.is_dir():
        return {"state": "gone", "reason": f"{copied} is not there", "set_aside": None}
    try:
        proof = fetch_checkpoint(copied, Path(task["checkpoints"]), tell)
    except SourceBad as problem:
        return {"state": "bad", "reason": str(problem), "set_aside": str(move_aside(copied, trash))}
    assert proof.body is not None
    run_id = str(proof.body.raw["run_id"])
    lost = [path for path in map(Path, task["logs"]) if not (path.exists() and path.stat().st_size)]
    brought = [str(path) for path in lost if copy_file(mirror / log_name(path, run_id), path, tell)]
    held = proof.body.raw.get("run_record", {}).get("heldout")
    if held is not None:
        held = _bring_heldout(mirror, Path(task["heldout"]), held["sha256"], tell)
    return {"state": "fetched", "proof": as_message(proof), "logs": brought, "heldout": held}


def _bring_heldout(mirror: Path, path: Path, sha256: str, tell: Progress) -> str:
    if path.exists() and hash_file(path).sha256 == sha256:
        return "there"
    try:
        is_brought = copy_file(mirror / heldout_name(sha256), path, tell, sha256)
    except SourceBad:
        return "bad"
    return "brought" if is_brought else "missing"


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
