"""The mirror of the checkpoints in an audit: by its record alone, or with `deep` every byte of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stoker.checkpoints.mirror.layout import Mirrored, heldout_name, list_mirror
from stoker.checkpoints.proof import prove_checkpoint
from stoker.config.schema import Pipeline
from stoker.store.errors import DataError
from stoker.store.record import read_record
from stoker.supervise.audit.audit_identity import heldout_findings
from stoker.supervise.run.record import RunRecord

ON_RECORD = "checkpoint mirror"


class MirrorAudit(NamedTuple):
    """How many copies there are, what is wrong with them, and what was not looked at but is on record."""

    copies: int = 0
    findings: tuple[str, ...] = ()
    on_record: tuple[str, ...] = ()


def audit_mirror(pipeline: Pipeline, record: RunRecord | None, *, deep: bool) -> MirrorAudit:
    """Audit the mirror of a pipeline's run, by its record alone or, with `deep`, every byte of it."""
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
    run_id = record.identity.run_id if record is not None else None
    there = {one.name for one in list_mirror(mirror) if one.run_id in (None, run_id)}
    findings = []
    for name in sorted(there):
        proof = prove_checkpoint(mirror / name)
        if proof.verdict != "proven" and (mirror / name).exists():
            findings.append(f"{mirror / name}: {proof.verdict}: {proof.reason}")
    if record is not None and (held := record.heldout) is not None:
        findings += heldout_findings(mirror / heldout_name(held.sha256), held)
    lost = sorted((told - there) & _on_record(run.mirror))  # some may have been pruned meanwhile
    findings += [f"{mirror / name}: on record, but not there" for name in lost]
    return MirrorAudit(len(there), tuple(findings))


def _on_record(path: Path) -> set[str]:
    try:
        copies = read_record(path)["copies"]
    except FileNotFoundError:
        return set()
    return {Mirrored.parse(copy).name for copy in copies}
