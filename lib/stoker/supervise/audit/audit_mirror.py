"""The mirror of the checkpoints in an audit: by its record alone, or with `deep` every byte of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stoker.checkpoints.mirror.layout import Mirrored, heldout_name, list_mirror
from stoker.checkpoints.proof import prove_checkpoint
from stoker.config.schema import Pipeline
from stoker.store.errors import DataError
from stoker.store.hashing import hash_file
from stoker.store.record import read_record

ON_RECORD = "checkpoint mirror"


class MirrorAudit(NamedTuple):
    """How many copies there are, what is wrong with them, and what was not looked at but is on record."""

    copies: int = 0
    findings: tuple[str, ...] = ()
    on_record: tuple[str, ...] = ()


def audit_mirror(pipeline: Pipeline, record: Mapping[str, Any], *, deep: bool) -> MirrorAudit:
    """Audit the mirror of a pipeline's run; `record` is run.json's body, empty where there is none."""
    warm, run = pipeline.warm_layout, pipeline.layout.run(pipeline.train.run)
    try:
        told = _on_record(run.mirror)
    except DataError as problem:
        return MirrorAudit(findings=(str(problem),))
    if warm is None or not told:
        return MirrorAudit()
    if not deep:
        return MirrorAudit(len(told), on_record=(ON_RECORD,))
    mirror = warm.checkpoints(pipeline.train.run)
    if not mirror.is_dir():
        finding = f"{mirror}: not there, but {len(told)} checkpoints were copied there; is warm mounted?"
        return MirrorAudit(len(told), (finding,), (ON_RECORD,))
    there = {one.name for one in list_mirror(mirror) if one.run_id in (None, record.get("run_id"))}
    findings = []
    for name in sorted(there):
        proof = prove_checkpoint(mirror / name)
        if proof.verdict != "proven" and (mirror / name).exists():
            findings.append(f"{mirror / name}: {proof.verdict}: {proof.reason}")
    findings += _heldout(mirror, record)
    lost = sorted((told - there) & _on_record(run.mirror))  # some may have been pruned meanwhile
    findings += [f"{mirror / name}: on record, but not there" for name in lost]
    return MirrorAudit(len(there), tuple(findings))


def _on_record(path: Path) -> set[str]:
    try:
        copies = read_record(path)["copies"]
    except FileNotFoundError:
        return set()
    return {Mirrored.parse(copy).name for copy in copies}


def _heldout(mirror: Path, record: Mapping[str, Any]) -> Iterator[str]:
    held = record.get("heldout")
    if not held:
        return
    copy = mirror / heldout_name(held["sha256"])
    try:
        found = hash_file(copy).sha256
    except OSError as problem:
        yield f"{copy}: cannot be read: {problem}"
        return
    if found != held["sha256"]:
        yield f"{copy}: sha256 {found[:16]}, the run's record says {held['sha256'][:16]}"
