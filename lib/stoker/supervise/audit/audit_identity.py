"""Audit of a run's identity (run.json, pin, checkpoints, heldout.bin), rollbacks, launches and mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import CheckpointBody
from stoker.checkpoints.mirror.layout import Mirrored, heldout_name, list_mirror
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import counts
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin
from stoker.plan.timelines import Timelines, ancestry
from stoker.store.direct import hash_file
from stoker.store.errors import DataError
from stoker.store.layout import RunLayout
from stoker.store.record import read_record
from stoker.supervise.run.launch_record import Launched
from stoker.supervise.run.record import Heldout, RunRecord

TOKENIZER_COPY = "tokenizer.json"


def run_findings(layout: RunLayout, record: RunRecord | None, pin: DatasetPin | None) -> Iterator[str]:
    """Checks run.json against its directory and the pin, and heldout.bin against run.json."""
    if record is None:
        return
    identity = record.identity
    wanted: dict[str, Any] = {"run": layout.root.name}
    if pin is not None:
        wanted |= {"dataset": pin.dataset, "dataset_version": pin.version, "build_id": pin.build_id}
        wanted |= {"tokenizer_sha256": pin.tokenizer.sha256, "vocab_size": pin.tokenizer.vocab_size}
    for name, value in wanted.items():
        if getattr(identity, name) != value:
            yield f"{layout.record}: {name} is {getattr(identity, name)}, on record is {value}"
    for file, held in record.held_files(layout).items():
        yield from heldout_findings(file, held)
    if record.heldout is None and layout.heldout.exists():
        yield f"{layout.heldout}: {layout.record.name} knows of no held-out windows"


def checkpoint_identity_findings(body: CheckpointBody, record: RunRecord) -> Iterator[str]:
    """Checks a checkpoint's description of its run against run.json."""
    raw, identity = body.raw, asdict(record.identity)
    told = {name: (raw[name], identity[name]) for name in ("run", "run_id") if name in raw}
    if isinstance(carried := raw.get("run_record"), Mapping):
        mine = record.for_checkpoints()
        known = mine.pop("heldouts", [])  # later files join a run
        told |= {f"run_record.{name}": (carried.get(name), value) for name, value in sorted(mine.items())}
        unknown = [one for one in carried.get("heldouts", ()) if one not in known]
        told["run_record.heldouts"] = (unknown, [])
    if (copy := body.files.get(TOKENIZER_COPY)) is not None:
        told[f"sha256 of {TOKENIZER_COPY}"] = (copy.sha256, identity["tokenizer_sha256"])
    for name, (value, wanted) in told.items():
        if value != wanted:
            yield f"{name} {value} is not the run's, {wanted}"


def heldout_findings(file: Path, told: Heldout) -> Iterator[str]:
    """Checks heldout.bin by hash, also without `deep`: the file is a few megabytes."""
    try:
        found = hash_file(file, past_cache=False).sha256
    except FileNotFoundError:
        yield f"{file}: missing, the run is evaluated on its {told.windows} windows"
        return
    except OSError as problem:
        yield f"{file}: cannot be read: {problem}"
        return
    if found != told.sha256:
        yield f"{file}: sha256 {found[:16]}, the run's record says {told.sha256[:16]}"


def unfinished_findings(
    layout: RunLayout, proven: Mapping[str, CheckpointBody], timelines: Timelines
) -> Iterator[str]:
    """Reports checkpoints that an interrupted rollback gave up but did not move away."""
    history = ancestry(timelines)
    for name, body in proven.items():
        if body.timeline <= timelines.current and not counts(body.timeline, body.step, history):
            past = f"lies past the fork of timeline {timelines.current}"
            yield f"{layout.checkpoints / name}: {past}; the next start of the supervisor finishes it"


def launch_findings(
    layout: RunLayout, timelines: Timelines, launches: Sequence[Launched], damage: Sequence[str]
) -> Iterator[str]:
    """Checks that the log of launches names no unknown timeline."""
    yield from (f"{layout.launches}: {finding}" for finding in damage)
    for one in launches:
        if one.timeline > timelines.current:
            ends = f"timelines.jsonl ends at {timelines.current}"
            yield f"{layout.launches}: launch {one.launch} is of timeline {one.timeline}, {ends}"


def audit_mirror(pipeline: Pipeline, record: RunRecord | None, *, deep: bool) -> tuple[int, list[str]]:
    """Returns the number of copies in the mirror and the faults found.

    Counts the recorded copies or, with `deep`, reads every byte of the mirror.
    """
    warm, run = pipeline.warm_layout, pipeline.layout.run(pipeline.train.run)
    try:
        told = _on_record(run.mirror)
    except DataError as problem:
        return 0, [str(problem)]
    if warm is None or not told:
        return 0, []
    if not deep:
        return len(told), []
    mirror = warm.checkpoints(pipeline.train.run)
    if not mirror.is_dir():
        finding = f"{mirror}: not there, but {len(told)} checkpoints were copied there; is warm mounted?"
        return len(told), [finding]
    run_id = record.identity.run_id if record is not None else None
    there = {one.name for one in list_mirror(mirror) if one.run_id in (None, run_id)}
    findings = []
    for name in sorted(there):
        proof = prove_checkpoint(mirror / name)
        if proof.verdict != "proven" and (mirror / name).exists():
            findings.append(f"{mirror / name}: {proof.verdict}: {proof.reason}")
    for held in record.held_files(run).values() if record is not None else ():
        findings += heldout_findings(mirror / heldout_name(held.sha256), held)
    lost = sorted((told - there) & _on_record(run.mirror))  # the supervisor may have pruned some meanwhile
    findings += [f"{mirror / name}: on record, but not there" for name in lost]
    return len(there), findings


def _on_record(path: Path) -> set[str]:
    try:
        copies = read_record(path)["copies"]
    except FileNotFoundError:
        return set()
    return {Mirrored.parse(copy).name for copy in copies}
