"""The task of `recheck_worker`; free of Arrow, for the daemon and for commands."""

from __future__ import annotations

from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import Kept
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.shards.format.pinned import filters_asked
from stoker.store.files import TEMPORARY

MODULE = "stoker.shards.audit.recheck_worker"
GONE = "its file is not there any more, and no good copy of it was kept"


def recheck_task(pipeline: Pipeline, kept: Kept, source: Source, receipt: Receipt | None) -> dict[str, Any]:
    """Returns the task that judges a quarantined file and writes nothing."""
    copies = [thing for thing in kept.things if not thing.startswith(TEMPORARY)]
    return {
        "home": str(pipeline.source_home),
        "origin": None if receipt is None else receipt.file,
        "kept": str(pipeline.layout.quarantine / kept.name / copies[0]) if copies else None,
        "target": None,
        "size": source.size,
        "sha256": source.sha256,
        "text_column": pipeline.dataset.text_column,
        "columns": filters_asked(pipeline).columns(),
        "floor": pipeline.stage.free_floor,
        "decode": True,
        "disks": [],
    }
