"""Another try for a quarantined source: the worker's task, the new record, the request to fetch."""

from __future__ import annotations

from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import Kept
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.shards.format.pinned import filters_asked
from stoker.store.files import TEMPORARY
from stoker.store.layout import DOWNLOAD_WATCHDOG, StateLayout
from stoker.store.requests import file_request, filed_requests

RELEASE, DROP, REVALIDATE = "release_quarantined", "drop_quarantined", "revalidate"
BY_ITSELF = "it decodes and hashes well now"
FORCED = "by hand, without a look at it"


def look_task(
    pipeline: Pipeline, kept: Kept, source: Source, receipt: Receipt | None, *, decode: bool
) -> dict[str, Any]:
    """Returns the task of stoker.shards.audit.recheck_worker for one finding."""
    copies = [thing for thing in kept.things if not thing.startswith(TEMPORARY)]
    return {
        "home": str(pipeline.source_home),
        "origin": None if receipt is None else receipt.file,
        "kept": str(pipeline.layout.quarantine / kept.name / copies[0]) if copies else None,
        "target": str(pipeline.hot_layout.parquet / parquet_name(source)),
        "size": source.size,
        "sha256": source.sha256,
        "text_column": pipeline.dataset.text_column,
        "columns": filters_asked(pipeline).columns(),
        "floor": pipeline.stage.free_floor,
        "decode": decode,
    }


def released(source: Source, why: str) -> Source:
    """Returns the source in its first state, with the content that was quarantined."""
    return source.renewed(size=source.size, sha256=source.sha256, reason=f"released from quarantine: {why}")


def fetch_again(layout: StateLayout, path: str) -> dict[str, Any]:
    """Files a request to the download watchdog to fetch a file again; returns the answer to the operator."""
    filed = filed_requests(layout, DOWNLOAD_WATCHDOG)
    if not any(one.verb == "fetch" and one.args.get("path") == path for one in filed):
        file_request(layout, DOWNLOAD_WATCHDOG, "fetch", {"path": path, "sha256": None})
    return {
        "fetching": path,
        "why": "the download watchdog is asked to fetch it now; it goes on once it is here",
    }
