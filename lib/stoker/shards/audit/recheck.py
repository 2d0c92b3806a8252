"""The task of `recheck_worker`; free of Arrow, for the daemon and for commands."""

from __future__ import annotations

from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import QuarantineEntry
from stoker.corpus.records.dataset import read_pin
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.shards.format.pinned import columns_asked
from stoker.store.files import TEMPORARY

MODULE = "stoker.shards.audit.recheck_worker"
GONE = "its file is not there any more, and no good copy of it was kept"


def recheck_task(
    pipeline: Pipeline, kept: QuarantineEntry, source: Source, receipt: Receipt | None
) -> dict[str, Any]:
    """Returns the task that judges a quarantined file and writes nothing."""
    tokens, name = pipeline.dataset.tokens_column, pipeline.dataset.name
    pin = None if tokens is None else read_pin(pipeline.layout, name)  # its vocabulary; text needs none
    copies = [thing for thing in kept.things if not thing.startswith(TEMPORARY)]
    return {
        "home": str(pipeline.source_home),
        "origin": None if receipt is None else receipt.file,
        "kept": str(pipeline.layout.quarantine / kept.name / copies[0]) if copies else None,
        "target": None,
        "size": source.size,
        "sha256": source.sha256,
        **columns_asked(pipeline, pin),
        "floor": pipeline.stage.free_floor,
        "decode": True,
        "disks": [],
    }
