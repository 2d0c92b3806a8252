"""Stage and quarantine: the jobs on one source's file."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.corpus.readers.finding import SET_INVALID
from stoker.corpus.records.sources import KEY16
from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.shards.format.pinned import columns_asked
from stoker.store.layout import record_name
from stokerd.sharding.activities import base
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import marks
from stokerd.sharding.effects import Begin, Effect, Write, event
from stokerd.sharding.work import Message, SourceWork

# Stage


def _begin_stage(dataset: DatasetState, path: str) -> Iterator[Effect]:
    """Stages the path's file; also decodes its text if the tokenizer is to be trained on it."""
    source, receipt, pipeline = dataset.sources[path], dataset.receipts[path], dataset.pipeline
    task = {
        "root": str(pipeline.source_root),
        "home": str(pipeline.source_home),
        "file": receipt.file,
        "size": source.size,
        "sha256": source.sha256,
        "target": dataset.parquet(source),
        **columns_asked(pipeline, dataset.pinning.pin),
        "floor": pipeline.stage.free_floor,
        "decode": dataset.pinning.trains,
        "disks": marks(dataset.hot),
    }
    yield Begin(dataset.name, STAGE, path, task, SourceWork(receipt=receipt))


def _on_message(_dataset: DatasetState, job: Job[SourceWork], message: Message) -> Iterator[Effect]:
    """Records the place being read, which may be blamed for a death."""
    if message["kind"] == "preflight":
        job.facts.row_group = base.FOOTER
    elif "row_groups" in message:
        job.facts.row_group = int(message["row_groups"])
    return iter(())


def _staged(dataset: DatasetState, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source = dataset.sources[job.subject]
    if result["status"] == "unavailable":
        dataset.pauses.source_failed(str(result["reason"]))
        yield from base.try_again(dataset, job, source, str(result["reason"]))
        return
    dataset.pauses.source_answered()
    if result["status"] == "missing":  # a folder's file may come back; a fetched file is fetched again
        if dataset.is_fetched:
            yield from base.dispute_receipt(dataset, source, job.facts.receipt)
        yield from base.try_again(dataset, job, source, "the source file is not there")
        return
    if result.get("resumed"):
        yield event("stage_resumed", path=source.path, bytes=result["resumed"])
    if result["how"] != "kept":
        dataset.needs.is_linked = result["how"] == "link"
    dataset.xxh3[source.sha256] = str(result["xxh3"])
    yield Write(source.moved("staged", attempts=0, deaths=(), reason=None))
    dataset.retries.succeeded(source.path)


def _not_staged(dataset: DatasetState, job: Job[SourceWork], outcome: Outcome) -> Iterator[Effect]:
    if outcome.kind in ("silent", "stalled"):
        words = f"bringing {job.subject} to hot: {outcome.reason}; does its file system answer?"
        dataset.pauses.source_failed(words)
    elif outcome.result:
        dataset.pauses.source_answered()
    return base.failed(dataset, job, outcome)


STAGE = base.ShardActivity(
    kind="stage",
    module="stoker.corpus.staging.stage_worker",
    stall_s=base.STALL_S,
    is_reusable=True,
    begin=_begin_stage,
    on_message=_on_message,
    on_done=_staged,
    on_end=_not_staged,
)


# Quarantine


def _begin_quarantine(dataset: DatasetState, path: str) -> Iterator[Effect]:
    """Sets aside the file, or the set at its target, according to the finding."""
    source, finding = dataset.sources[path], dataset.convicted[path]
    reason = {"path": path, "sha256": source.sha256, **finding.fields()}
    kind, thing = "parquet", dataset.parquet(source)
    if finding.reason == SET_INVALID:
        reason["key"] = dataset.key(source)
        kind, thing = "shards", str(dataset.set_on("hot", source, dataset.key(source)))
    task = {
        "directory": str(dataset.pipeline.layout.quarantine),
        "kind": kind,
        "name": record_name(source.dataset, source.path),
        "thing": thing,
        "reason": reason,
        "budget_bytes": dataset.pipeline.quarantine.keep_bytes,
        "disks": marks(dataset.hot),
    }
    yield Begin(dataset.name, QUARANTINE, path, task, SourceWork())


def _quarantined(dataset: DatasetState, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source = dataset.sources[job.subject]
    finding = dataset.convicted[source.path]
    dataset.machine.quarantine.read_soon()
    if finding.reason == SET_INVALID:
        dataset.hot.published.discard(dataset.key(source)[:KEY16])
    else:
        yield Write(source.moved("quarantined", reason=finding.reason, column=finding.column))
        dataset.discard_build(source)
        about = {"path": source.path, "folder": str(result["folder"]), **finding.fields()}
        yield event("source_quarantined", **about)
    dataset.convicted.pop(source.path, None)
    dataset.retries.succeeded(source.path)


QUARANTINE = base.ShardActivity(
    kind="quarantine",
    module="stoker.corpus.quarantine.quarantine_worker",
    is_reusable=True,
    begin=_begin_quarantine,
    on_done=_quarantined,
)
