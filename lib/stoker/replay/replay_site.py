"""The directory in which a recorded run is trained again: copies of its history, and a run of its own.

    replay.json         the recorded run, the last step, the checkpoint to compare with
    run/                plan, timelines, launches, held-out windows, tokenizer; then the replay's results
    recorded/           training log and launch record
    shards/             links to the run's shard sets on hot, or on warm

All copies are made at the beginning, so that the pipeline may train, roll back and prune meanwhile.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.retention import CheckpointEntry, candidates, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock
from stoker.plan.log import Plan, read_plan
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.replay.replay_phases import Phase, insist_on_equal_bits, phases
from stoker.store.direct import insist_on_room
from stoker.store.errors import UsageError
from stoker.store.files import make_dir, write_atomic
from stoker.store.layout import RunLayout
from stoker.store.record import read_record, write_record
from stoker.supervise.run.launch_record import read_launches
from stoker.supervise.run.numerics_record import of_checkpoint
from stoker.supervise.run.origin import Origin, prove_origin
from stoker.supervise.run.record import parse_record

COMPARED = ("step", "timeline", "tokens", "position", "files")  # of a checkpoint.json


class Site:
    """A replay's directory; `told` is the body of replay.json, empty before that exists."""

    def __init__(self, root: Path, fields: Mapping[str, Any]) -> None:
        self.root, self.fields = root, fields
        self.run = RunLayout(root / "run")  # the replay's own run
        self.shards = root / "shards"
        self.tokenizer = self.run.root / "tokenizer.json"
        recorded = root / "recorded"
        self.metrics = recorded / "metrics.jsonl"
        self.base = recorded / "launch.json"
        # The body of the recorded checkpoint.json to compare with, None when no checkpoint is early enough.
        self.compared: Mapping[str, Any] | None = fields.get("compared")
        self.to, self.timeline = int(fields.get("to", 0)), int(fields.get("timeline", 0))

    def plan(self) -> Plan:
        return read_plan(self.run.plan)

    def timelines(self) -> Timelines:
        return read_timelines(self.run.timelines)

    def phases(self) -> list[Phase]:
        """Returns the phases to train; one of them ends at the recorded checkpoint."""
        launches = read_launches(self.run.launches)[0]
        stop = self.compared["step"] if self.compared is not None else None
        return phases(launches, self.timelines(), timeline=self.timeline, to=self.to, stop=stop)

    @property
    def device(self) -> str:
        """The device of the recorded run."""
        return str(self.phases()[0].settings["numerics"]["device"])

    def finish(self, verdict: Mapping[str, Any]) -> None:
        """Writes the verdict; the replay is finished then."""
        write_record(self.root / "replay.json", {**self.fields, "state": "done", "verdict": dict(verdict)})


def own_checkpoints(site: Site) -> Iterator[CheckpointEntry]:
    """Yields the checkpoints that the replay sealed, newest first."""
    history = ancestry(site.timelines(), site.timeline)
    yield from candidates(find_checkpoints(site.run.checkpoints), history)


def link_sets(site: Site, pipeline: Pipeline) -> list[str]:
    """Points a link for each set of the plan at a directory that holds it: hot's, else warm's copy.

    Returns the first 16 digits of the keys whose link changed. A set that is on no disk, or differs from the
    planned set, has no link: the trainer reports it when it reads the set.
    """
    site.shards.mkdir(exist_ok=True)
    disks = [disk for disk in (pipeline.hot_layout, pipeline.warm_layout) if disk is not None]
    places = [disk.shards(str(site.fields["dataset"])) for disk in disks]
    changed = []
    for key, digest in dict(pair for entry in site.plan().segments for pair in entry.sets).items():
        link = site.shards / key[:16]
        if _holds(link, digest):
            continue
        found = next((place / key[:16] for place in places if _holds(place / key[:16], digest)), None)
        if found is not None:
            link.unlink(missing_ok=True)
            link.symlink_to(found)
            changed.append(key[:16])
    return changed


def _holds(directory: Path, digest: str) -> bool:
    """Whether the set of this manifest is there; its files are checked when they are opened."""
    try:
        return hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest() == digest
    except OSError:
        return False


LOCK = "replay.lock"
ROOM_FACTOR = 4  # checkpoints of the replay on disk at once, including one being sealed


def take_up(pipeline: Pipeline, run: str, out: Path, to: int | None) -> tuple[Site, Lock]:
    """Begins a replay in a new directory, or continues a stopped replay of the same run, under its lock.

    Raises UsageError for a directory with other files, for a finished replay, and for a step with no sealed
    checkpoint of the run at or after it; ConfigError for steps that no replay repeats; DataError where the
    run's files contradict each other; LockHeld while another process works there.
    """
    recorded = pipeline.layout.run(run)
    record = read_record(recorded.record)
    # A directory with the lock and without replay.json was left by an interrupted preparation.
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
    """Returns the body of replay.json of a replay to continue; None before it exists."""
    try:
        fields = read_record(out / "replay.json")
    except FileNotFoundError:
        return None
    problem = ""
    if fields["run_id"] != record["run_id"]:
        problem = f"a replay of run {fields['run']}, of another pipeline or an earlier life"
    elif fields["state"] != "running":
        problem = "a finished replay"
    elif to not in (None, fields["to"]):
        problem = f"a replay up to step {fields['to']}, which continues without --to"
    if problem:
        raise UsageError(f"{out} is {problem}; remove it, or name another directory")
    return fields


def _begin(
    pipeline: Pipeline, recorded: RunLayout, record: Mapping[str, Any], out: Path, wanted: int | None
) -> dict[str, Any]:
    timelines = read_timelines(recorded.timelines)
    sealed = candidates(find_checkpoints(recorded.checkpoints), ancestry(timelines))
    if not sealed:
        raise UsageError(f"{recorded.checkpoints} holds no sealed checkpoint yet: nothing can be compared")
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
    name = "" if compared is None else checkpoint_name(compared.step)
    made_with = of_checkpoint(recorded.checkpoints / name) if name else None
    # The log is read after the checkpoint, and the plan after both: each is ahead of those before.
    for source, target in (
        (recorded.metrics, site.metrics),
        (recorded.timelines, site.run.timelines),
        (recorded.launches, site.run.launches),
        (recorded.plan, site.run.plan),
    ):
        raw = source.read_bytes() if source.exists() else b""
        write_atomic(target, raw[: raw.rfind(b"\n") + 1])  # without a line that is still being written
    base = read_record(recorded.launch)
    if base.get("origin"):  # the replay's first launch proves its large files too
        prove_origin(Origin(**base["origin"]), deep=False)
    write_record(site.base, base)
    shutil.copyfile(base["tokenizer_file"], site.tokenizer)
    for file in parse_record(base["run_record"]).held_files(recorded) if base["heldout"] else ():
        shutil.copyfile(file, site.run.root / file.name)
    fields = {
        "v": 1,
        "state": "running",
        "pipeline": pipeline.name,
        **{name: record[name] for name in ("run", "run_id", "dataset")},
        "from": str(recorded.root),
        "timeline": timelines.current,
        "to": to,
        "compared": None if compared is None else {name: compared.raw[name] for name in COMPARED},
    }
    insist_on_equal_bits(Site(out, fields).phases(), name, made_with)
    write_record(out / "replay.json", fields)
    return fields
