"""The beginning of a replay: whatever it needs of the recorded run is copied before anything is trained."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import BODY, SUMS, CheckpointBody, read_body
from stoker.checkpoints.reading import reading
from stoker.checkpoints.select import Found, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock
from stoker.plan.positions import Position, left_after
from stoker.plan.timelines import Timelines, ancestry, read_timelines, skips
from stoker.store.errors import ConfigError, DataError, StorageError, UsageError
from stoker.store.files import make_dir, write_atomic
from stoker.store.layout import RunLayout
from stoker.store.record import read_record, write_record
from stoker.supervise.replay.replay_site import COMPARED, Site

LOCK = "replay.lock"
TRIES = 5  # at a checkpoint that is pruned while it is being copied
ROOM_FACTOR = 4  # checkpoints of the replay's own that may lie there at once, one of them being sealed


def take_up(pipeline: Pipeline, run: str, out: Path, to: int | None) -> tuple[Site, Lock]:
    """Begin a replay in a new directory, or go on with a stopped one of the same run; nobody else does then.

    Raises UsageError for a directory of something else, for a finished replay, and for a step that the run
    has sealed no checkpoint at or behind; DataError where the run's files contradict each other; LockHeld
    while another process works there.
    """
    recorded = pipeline.layout.run(run)
    record = read_record(recorded.record)
    if _begun(out, record, to) is None:
        _last_step(recorded, to)  # before anything is made
    make_dir(out)
    lock = Lock.acquire(out / LOCK, purpose="stoker replay")
    try:
        told = _begun(out, record, to)  # as the lock's last holder left it
        return Site(out, told or _begin(pipeline, recorded, record, out, to)), lock
    except BaseException:
        lock.release()
        raise


def _begun(out: Path, record: Mapping[str, Any], to: int | None) -> dict[str, Any] | None:
    """What replay.json says of a replay to go on with; None where one may begin.

    A directory with the lock and without replay.json is one whose preparation was cut off.
    """
    try:
        told = read_record(out / "replay.json")
    except (FileNotFoundError, NotADirectoryError):
        if out.exists() and not (out / LOCK).exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} is there already and no unfinished replay; name a new directory"
            ) from None
        return None
    if told["run_id"] != record["run_id"]:
        raise UsageError(
            f"{out} is a replay of run {told['run']}, of another pipeline or an earlier life; name another"
        )
    if told["state"] != "running":
        raise UsageError(f"{out} is a finished replay; remove it, or name another directory")
    if to is not None and to != told["to"]:
        raise UsageError(
            f"{out} is a replay up to step {told['to']}; leave --to out to go on with it, or name another"
        )
    return told


def _last_step(recorded: RunLayout, to: int | None) -> tuple[int, int]:
    """The last step of a replay and the newest that the run has sealed; UsageError for one beyond that."""
    newest = _sealed(recorded, read_timelines(recorded.timelines))[0].step
    last = newest if to is None else to
    if not 1 <= last <= newest:
        raise UsageError(f"--to {to}: the newest sealed checkpoint is step {newest}; write 1 to {newest}")
    return last, newest


def _begin(
    pipeline: Pipeline, recorded: RunLayout, record: Mapping[str, Any], out: Path, wanted: int | None
) -> dict[str, Any]:
    timelines = read_timelines(recorded.timelines)
    to, newest = _last_step(recorded, wanted)
    site = Site(out, {})
    site.run.create()
    site.metrics.parent.mkdir(exist_ok=True)
    body = _copy_checkpoint(recorded, timelines, to, site)
    # The log after the checkpoint, and the plan after both: each is ahead of what was read before it.
    for source, target in (
        (recorded.metrics, site.metrics),
        (recorded.timelines, site.run.timelines),
        (recorded.launches, site.run.launches),
        (recorded.plan, site.run.plan),
    ):
        raw = source.read_bytes() if source.exists() else b""
        write_atomic(target, raw[: raw.rfind(b"\n") + 1])  # not the line that is being written
    made_by = site.machine.parent / COMPARED if body is not None else _sealed(recorded, timelines)[0].path
    write_atomic(site.machine, (made_by / "trainer.json").read_bytes())
    base = read_record(recorded.launch)
    write_record(site.base, base)
    _copy_tokenizer(Path(base["tokenizer_file"]), site.tokenizer, str(record["tokenizer_sha256"]))
    if base["heldout"] is not None:
        shutil.copyfile(recorded.heldout, site.run.heldout)
    told = {
        "v": 1,
        "state": "running",
        "pipeline": pipeline.name,
        **{name: record[name] for name in ("run", "run_id", "dataset")},
        "from": str(recorded.root),
        "timeline": timelines.current,
        "to": to,
        "checkpoint": None if body is None else COMPARED,
        "compared_step": None if body is None else body.step,
        "last_entry": body.position[0] if body is not None and body.step == to else None,
        # The last launch ended for want of data and was evaluated there: so must the replay's.
        "exhausted": to == newest and body is not None and _is_exhausted(site, body, base, timelines),
    }
    write_record(out / "replay.json", told)
    return told


def _sealed(recorded: RunLayout, timelines: Timelines) -> list[Found]:
    """The checkpoints on the run's history, newest first."""
    found = candidates(find_checkpoints(recorded.checkpoints), ancestry(timelines))
    if not found:
        raise UsageError(
            f"{recorded.checkpoints} holds no sealed checkpoint yet: there is nothing to compare"
        )
    return found


def _copy_checkpoint(recorded: RunLayout, timelines: Timelines, to: int, site: Site) -> CheckpointBody | None:
    """Take the newest checkpoint up to a step along, by links where the file system allows."""
    target = site.metrics.parent / COMPARED
    for _ in range(TRIES):
        one = next((found for found in _sealed(recorded, timelines) if found.step <= to), None)
        if one is None:
            return None
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        try:
            with reading(one.path):
                body = read_body((one.path / BODY).read_bytes())
                _leave_room(site.root, body.bytes)
                for name in [*body.files, BODY, SUMS]:
                    _link_or_copy(one.path / name, target / name)
                return body
        except FileNotFoundError:
            continue  # pruned just now
    raise StorageError(f"{recorded.checkpoints}: checkpoints vanish while they are copied; try again")


def _leave_room(out: Path, checkpoint_bytes: int) -> None:
    free, wanted = shutil.disk_usage(out).free, ROOM_FACTOR * checkpoint_bytes
    if free < wanted:
        raise StorageError(
            f"{out} has {free:,} bytes free, a replay needs {wanted:,}: {ROOM_FACTOR} checkpoints; name a "
            "directory on another disk"
        )


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _copy_tokenizer(source: Path, target: Path, sha256: str) -> None:
    try:
        raw = source.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{source} is not there: the tokenizer of the run is lost") from None
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise ConfigError(f"{source} is not the tokenizer that the run began with (sha256 {sha256[:16]})")
    write_atomic(target, raw)


def _is_exhausted(site: Site, body: CheckpointBody, base: Mapping[str, Any], timelines: Timelines) -> bool:
    plan = site.plan()
    if not plan.ended or body.step >= int(base["steps"]):
        return False
    return left_after(plan, Position(*body.position), skips(timelines)) < int(base["global_batch"])
