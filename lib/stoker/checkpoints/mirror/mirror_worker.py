"""Worker: performs all work on warm for the train supervisor's mirror of checkpoints.

Each task has "verb", "warm", "run", "owner" (the pipeline's name) and "expected": the mirror had files
before, so that an empty folder in warm's place is no mirror. By verb:

sync   {"run_id": str or null, "prune": names of copies to remove,
        "copy": null or {"source", "name", "digest", "heldouts": [[path, sha256], ...], "logs": paths}}
       -> {"copies": [{"timeline", "step", "mark", "run_id", "val_loss"}, ...], "foreign": [run ids],
           "timelines": the newest copy of timelines.jsonl, from proven small files, or null,
           "gone": names, and of a copy "replaced": whether a wrong one was, or "source_bad": reason}
fetch  {"name", "checkpoints", "logs": paths, copied back where they are missing or empty, "heldout": path}
       -> {"state": "fetched", "proof": the proof worker's result, "logs": the paths copied back,
           "heldout": of all its held-out files "there" (already), or the worst of "brought", "missing" and
           "bad"; null without any},
          or {"state": "gone" | "bad", "reason"}

A copy is written under a temporary name, each file durable, and read back past the cache; only a proven copy
gets its name, by one rename. A kill at any moment does no harm: the next try uses the files that an
interrupted copy finished.

{"kind": "progress"} every few seconds shows that the worker is alive. Exits 69 when warm is not mounted
or is another pipeline's, 74 when it cannot be read or written now.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import (
    BODY,
    SUMS,
    TEMPORARY,
    TIMELINES_COPY,
    checkpoint_name,
    folders_of,
    mark_of,
    read_body,
    step_of,
)
from stoker.checkpoints.mirror.layout import Mirrored, heldout_name, list_mirror, log_name, require_ours
from stoker.checkpoints.proof import Progress, Proof, prove_checkpoint
from stoker.checkpoints.proof_worker import as_message
from stoker.checkpoints.retention import reading, remove_checkpoint
from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.store.direct import copy, hash_file, insist_on_room
from stoker.store.errors import DataError, StorageError, storage_errors
from stoker.store.files import (
    fsync_dir,
    inside,
    make_dir,
    publish_dir,
    remove_durably,
    remove_tree,
    sweep_temporaries,
    temporary_beside,
)
from stoker.store.layout import WarmLayout


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Performs the task's verb."""
    report("phase", phase=task["verb"])
    warm = WarmLayout(Path(task["warm"]))
    mirror = warm.checkpoints(task["run"])
    require_ours(warm, mirror, task["owner"], expected=task["expected"])
    tell = heartbeat(report, mirror.name)
    return _fetch(task, mirror, tell) if task["verb"] == "fetch" else _sync(task, mirror, tell)


def _sync(task: Mapping[str, Any], mirror: Path, tell: Progress) -> dict[str, Any]:
    run_id = task["run_id"]
    copied = {} if task["copy"] is None else _copy(task["copy"], mirror, run_id, tell)
    gone = give_up(mirror, task["prune"])
    with storage_errors("list", mirror):
        found = list_mirror(mirror)
    ours = [one for one in found if run_id is None or one.run_id in (None, run_id)]
    others = {one.run_id for one in found if one.run_id is not None} - {run_id}
    return {
        "copies": [asdict(one) for one in ours],
        "foreign": sorted(others),
        "timelines": _newest_timelines(mirror, ours),
        "gone": gone,
        **copied,
    }


def _newest_timelines(mirror: Path, copies: list[Mirrored]) -> str | None:
    """Returns timelines.jsonl from a checkpoint of the latest timeline, which has every line so far."""
    for one in sorted(copies, key=lambda one: (-one.timeline, -one.step)):
        proof = prove_checkpoint(mirror / one.name, deep=False)
        if proof.body is not None and TIMELINES_COPY in proof.body.files:
            return (mirror / one.name / TIMELINES_COPY).read_text()
    return None


def _copy(task: Mapping[str, Any], mirror: Path, run_id: str, tell: Progress) -> dict[str, Any]:
    make_dir(mirror)
    # Logs and held-out windows come before the checkpoint: a mirrored checkpoint has its files beside it.
    for path in map(Path, task["logs"]):
        copy_file(path, mirror / log_name(path, run_id), tell)
    for path, sha256 in task["heldouts"]:
        target = mirror / heldout_name(sha256)
        if not target.exists() or hash_file(target).sha256 != sha256:
            with contextlib.suppress(SourceBad):  # the launch that reads the file reports it
                copy_file(Path(path), target, tell, sha256)
    try:
        source, target = Path(task["source"]), mirror / task["name"]
        return {"replaced": copy_checkpoint(source, target, task["digest"], tell)}
    except SourceBad as problem:
        return {"source_bad": str(problem)}


def _fetch(task: Mapping[str, Any], mirror: Path, tell: Progress) -> dict[str, Any]:
    copied = mirror / task["name"]
    if not copied.is_dir():
        return {"state": "gone", "reason": f"{copied} is not there"}
    try:
        proof = fetch_checkpoint(copied, Path(task["checkpoints"]), tell)
    except SourceBad as problem:
        remove_checkpoint(copied)
        return {"state": "bad", "reason": str(problem)}
    assert proof.body is not None
    run_id = str(proof.body.raw["run_id"])
    lost = [path for path in map(Path, task["logs"]) if not (path.exists() and path.stat().st_size)]
    brought = [str(path) for path in lost if copy_file(mirror / log_name(path, run_id), path, tell)]
    record = proof.body.raw.get("run_record", {})
    held = [one for one in (record.get("heldout"), *record.get("heldouts", ())) if one]
    ends = [_bring_heldout(mirror, Path(task["heldout"]), one, tell) for one in held]
    worst = max(ends, key=["there", "brought", "missing", "bad"].index, default=None)
    return {"state": "fetched", "proof": as_message(proof), "logs": brought, "heldout": worst}


def _bring_heldout(mirror: Path, first: Path, held: Mapping[str, Any], tell: Progress) -> str:
    path, sha256 = first.with_name(held.get("file", first.name)), held["sha256"]
    if path.exists() and hash_file(path).sha256 == sha256:
        return "there"
    try:
        is_brought = copy_file(mirror / heldout_name(sha256), path, tell, sha256)
    except SourceBad:
        return "bad"
    return "brought" if is_brought else "missing"


class SourceBad(DataError):
    """Raised where the file or checkpoint to copy is not the expected one."""


def copy_checkpoint(source: Path, target: Path, digest: str, tell: Progress) -> bool:
    """Copies a proven checkpoint into a run's mirror; returns whether it replaced a wrong copy.

    `digest` is its checkpoint.json's sha256. A proven copy at the target is enough. Raises SourceBad when the
    source is not the proven checkpoint, StorageError (warm full or failing, the copy reads differently) and
    DataError when another checkpoint has the copy's name.
    """
    temporary = target.parent / f".tmp-{target.name}"  # a fixed name: the next try finds it
    with reading(source):
        sweep(target.parent.parent, sparing=temporary)
        is_wrong = os.path.lexists(target)
        if is_wrong:
            proof = _judged(target, tell)
            if proof.digest == digest:
                return False
            if proof.verdict == "proven":
                raise DataError(f"{target} is another checkpoint, and is whole; move it away")
            if not remove_checkpoint(target):
                raise StorageError(f"{target} is not whole, and is being read", errno.EBUSY)
        _proven_copy(source, temporary, digest, tell)
        publish_dir(temporary, target)
    return is_wrong


def fetch_checkpoint(copied: Path, checkpoints: Path, tell: Progress) -> Proof:
    """Copies a mirrored checkpoint back into `checkpoints` under the name of its step; returns its proof.

    The same checkpoint at the target is enough. Raises SourceBad for a wrong copy, StorageError where either
    disk cannot be read or written now, DataError when another checkpoint has the step's name.
    """
    step, mark = step_of(copied.name), mark_of(copied.name)
    assert step is not None and mark is not None, copied
    target = checkpoints / checkpoint_name(step)
    with reading(copied):
        if os.path.lexists(target):
            proof = prove_checkpoint(target, progress=tell)
            if not _is(proof, mark):
                raise DataError(
                    f"{target} is there and is not {copied} ({proof.verdict}); nothing is replaced"
                )
            return proof
        temporary = checkpoints / f"{TEMPORARY}fetched-{step:09d}"
        remove_tree(temporary)
        try:
            proof = _proven_copy(copied, temporary, mark, tell)
            publish_dir(temporary, target)
        except BaseException:
            remove_tree(temporary)
            raise
        return proof


def _proven_copy(source: Path, into: Path, digest: str, tell: Progress) -> Proof:
    """Copies a checkpoint's files into a directory, and proves them; `digest` may be its first digits only.

    An invalid copy is removed. After a failure the source is proven: SourceBad where the source is wrong,
    else StorageError, and the caller tries again.
    """
    make_dir(into)
    try:
        _copy_files(source, into, tell)
        proof = prove_checkpoint(into, progress=tell)
        if _is(proof, digest):
            return proof
        if proof.verdict != "unreadable":
            remove_tree(into)
        why = f"{into} does not read as it was written ({proof.verdict}: {proof.reason}); check the disk"
    except (DataError, FileNotFoundError) as problem:
        why = f"{source} cannot be copied to {into}: {problem}"
    original = _judged(source, tell)
    if not _is(original, digest):
        raise SourceBad(original.reason or f"{source}: {BODY} is not the one that was proven")
    raise StorageError(why, errno.EIO)


def _copy_files(source: Path, into: Path, tell: Progress) -> None:
    """Copies every listed file that is missing or not full length; the proof shows which became durable."""
    with storage_errors(f"copy {source} to", into):
        names = [*sorted(read_body((source / BODY).read_bytes(), source / BODY).files), BODY, SUMS]
        sizes = {name: inside(source, name).stat().st_size for name in names}
        for folder in folders_of(names):
            make_dir(into / folder)
        there = {name: (into / name).lstat().st_size for name in names if os.path.lexists(into / name)}
        missing = [name for name in names if there.get(name) != sizes[name]]
        insist_on_room(into, sum(sizes[name] for name in missing), 0)
        for name in missing:
            (into / name).unlink(missing_ok=True)
            copy(source / name, into / name, tell)


def copy_file(source: Path, target: Path, tell: Progress, sha256: str = "") -> bool:
    """Copies a file as it is now, and reads the copy back where its hash is given; False without a source.

    Raises SourceBad where the source has another hash, StorageError where either disk fails.
    """
    temporary = temporary_beside(target)
    try:
        with storage_errors(f"copy {source} to", target):
            copy(source, temporary, tell)
            if sha256 and hash_file(temporary).sha256 != sha256:
                if hash_file(source).sha256 != sha256:
                    raise SourceBad(f"{source} has not the sha256 {sha256[:16]} that is on record")
                raise StorageError(f"{temporary} reads differently from what was written", errno.EIO)
            temporary.rename(target)
            fsync_dir(target.parent)
    except FileNotFoundError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return True


def give_up(mirror: Path, names: list[str]) -> list[str]:
    """Removes copies without readers; returns the names that are gone. Raises StorageError."""
    paths = {name: inside(mirror, name) for name in names}
    return [name for name, path in paths.items() if not os.path.lexists(path) or remove_checkpoint(path)]


def sweep(mirror: Path, sparing: Path) -> None:
    """Removes leftovers of interrupted copies and removals; `sparing` is the copy to continue."""
    for path in mirror.glob("t*/.tmp-*"):
        if path != sparing:
            remove_durably(path)
    if mirror.is_dir():
        sweep_temporaries(mirror)


def _is(proof: Proof, digest: str) -> bool:
    return proof.digest is not None and proof.digest.startswith(digest)


def _judged(path: Path, tell: Progress) -> Proof:
    """Returns the proof of a checkpoint; raises StorageError where there is no verdict now."""
    proof = prove_checkpoint(path, progress=tell)
    if proof.verdict == "unreadable":
        raise StorageError(f"{path}: {proof.reason}", errno.EIO)
    return proof


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
