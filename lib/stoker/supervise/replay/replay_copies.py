"""The beginning of a replay: whatever it needs of the recorded run is copied before anything is trained."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.select import Found, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.store.durable_copy import insist_on_room
from stoker.store.errors import UsageError
from stoker.store.files import make_dir, write_atomic
from stoker.store.layout import RunLayout
from stoker.store.record import read_record, write_record
from stoker.supervise.replay.replay_site import COMPARED, Site

LOCK = "replay.lock"
ROOM_FACTOR = 4  # checkpoints of the replay's own that may lie there at once, one of them being sealed


def take_up(pipeline: Pipeline, run: str, out: Path, to: int | None) -> tuple[Site, Lock]:
    """Begin a replay in a new directory, or go on with a stopped one of the same run, under its lock.

    Raises UsageError for a directory of something else, for a finished replay, and for a step that the run
    has sealed no checkpoint at or behind; DataError where the run's files contradict each other; LockHeld
    while another process works there.
    """
    recorded = pipeline.layout.run(run)
    record = read_record(recorded.record)
    # A directory with the lock and without replay.json is one whose preparation was cut off.
    if out.exists() and not (out / LOCK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already and no unfinished replay; name a new directory")
    make_dir(out)
    lock = Lock.acquire(out / LOCK, purpose="stoker replay")
    try:
        return Site(out, _begun(out, record, to) or _begin(pipeline, recorded, record, out, to)), lock
    except BaseException:
        lock.release()
        raise


def _begun(out: Path, record: Mapping[str, Any], to: int | None) -> dict[str, Any] | None:
    """What replay.json says of a replay to go on with; None before there is one."""
    try:
        told = read_record(out / "replay.json")
    except FileNotFoundError:
        return None
    problem = ""
    if told["run_id"] != record["run_id"]:
        problem = f"a replay of run {told['run']}, of another pipeline or an earlier life"
    elif told["state"] != "running":
        problem = "a finished replay"
    elif to not in (None, told["to"]):
        problem = f"a replay up to step {told['to']}, which goes on without --to"
    if problem:
        raise UsageError(f"{out} is {problem}; remove it, or name another directory")
    return told


def _begin(
    pipeline: Pipeline, recorded: RunLayout, record: Mapping[str, Any], out: Path, wanted: int | None
) -> dict[str, Any]:
    timelines = read_timelines(recorded.timelines)
    sealed = _sealed(recorded, timelines)
    newest = sealed[0].step
    to = newest if wanted is None else wanted
    if not 1 <= to <= newest:
        raise UsageError(f"--to {to}: the newest sealed checkpoint is step {newest}; write 1 to {newest}")
    site = Site(out, {})
    site.run.create()
    site.metrics.parent.mkdir(exist_ok=True)
    compared = next((found.body for found in sealed if found.step <= to and found.body), None)
    if compared is not None:
        insist_on_room(out, ROOM_FACTOR * compared.bytes, 0)
    made_by = checkpoint_name(newest if compared is None else compared.step)
    shutil.copyfile(recorded.checkpoints / made_by / "trainer.json", site.machine)
    # The log after the checkpoint, and the plan after both: each is ahead of what was read before it.
    for source, target in (
        (recorded.metrics, site.metrics),
        (recorded.timelines, site.run.timelines),
        (recorded.launches, site.run.launches),
        (recorded.plan, site.run.plan),
    ):
        raw = source.read_bytes() if source.exists() else b""
        write_atomic(target, raw[: raw.rfind(b"\n") + 1])  # not the line that is being written
    base = read_record(recorded.launch)
    write_record(site.base, base)
    shutil.copyfile(base["tokenizer_file"], site.tokenizer)
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
        "compared": None if compared is None else {name: compared.raw[name] for name in COMPARED},
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
