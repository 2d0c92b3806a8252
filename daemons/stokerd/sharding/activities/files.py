"""Stage and quarantine: the jobs on one source's file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.corpus.readers.finding import SET_INVALID
from stoker.corpus.records.sources import KEY16
from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.shards.format.pinned import columns_asked
from stoker.store.layout import record_name
from stokerd.sharding.activities import base
from stokerd.sharding.activities.base import Message, ShardActivity, SourceWork, marks
from stokerd.sharding.effects import Begin, Effect, Write, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

# Stage


def _begin_stage(state: State, path: str) -> Iterator[Effect]:
    """Stages the path's file; also decodes its text if the tokenizer is to be trained on it."""
    source, receipt, pipeline = state.sources[path], state.records.receipts[path], state.pipeline
    task = {
        "root": str(pipeline.source_root),
        "home": str(pipeline.source_home),
        "file": receipt.file,
        "size": source.size,
        "sha256": source.sha256,
        "target": state.parquet(source),
        **columns_asked(pipeline, state.records.pinning.pin),
        "floor": pipeline.stage.free_floor,
        "decode": state.records.pinning.trains,
        "disks": marks(state.hot),
    }
    yield Begin(STAGE, path, task, SourceWork(receipt=receipt))


def _on_message(_state: State, job: Job[SourceWork], message: Message) -> Iterator[Effect]:
    """Records the place being read, which may be blamed for a death."""
    if message["kind"] == "preflight":
        job.facts.row_group = base.FOOTER
    elif "row_groups" in message:
        job.facts.row_group = int(message["row_groups"])
    return iter(())


def _staged(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source = state.sources[job.subject]
    if result["status"] == "unavailable":
        state.pauses.source_failed(str(result["reason"]))
        yield from base.try_again(state, job, source, str(result["reason"]))
        return
    state.pauses.source_answered()
    if result["status"] == "missing":  # a folder's file may come back; a fetched file is fetched again
        if state.records.is_fetched:
            yield from base.dispute_receipt(state, source, job.facts.receipt)
        yield from base.try_again(state, job, source, "the source file is not there")
        return
    if result.get("resumed"):
        yield event("stage_resumed", path=source.path, bytes=result["resumed"])
    if result["how"] != "kept":
        state.is_linked = result["how"] == "link"
    state.records.xxh3[source.sha256] = str(result["xxh3"])
    yield Write(source.moved("staged", attempts=0, deaths=(), reason=None))
    state.retries.succeeded(source.path)


def _not_staged(state: State, job: Job[SourceWork], outcome: Outcome) -> Iterator[Effect]:
    if outcome.kind in ("silent", "stalled"):
        words = f"bringing {job.subject} to hot: {outcome.reason}; does its file system answer?"
        state.pauses.source_failed(words)
    elif outcome.result:
        state.pauses.source_answered()
    return base.failed(state, job, outcome)


STAGE = ShardActivity(
    kind="stage",
    module="stoker.corpus.staging.stage_worker",
    stall_s=base.STALL_S,
    is_reusable=True,
    begin=_begin_stage,
    on_message=_on_message,
    on_done=_staged,
    on_end=_not_staged,
    writes_to="hot",
)


# Quarantine


def _begin_quarantine(state: State, path: str) -> Iterator[Effect]:
    """Sets aside the file, or the set at its target, according to the finding."""
    source, finding = state.sources[path], state.records.convicted[path]
    reason = {"path": path, "sha256": source.sha256, **finding.fields()}
    kind, thing = "parquet", state.parquet(source)
    if finding.reason == SET_INVALID:
        reason["key"] = state.key(source)
        kind, thing = "shards", str(state.set_on("hot", source, state.key(source)))
    task = {
        "directory": str(state.pipeline.layout.quarantine),
        "kind": kind,
        "name": record_name(source.dataset, source.path),
        "thing": thing,
        "reason": reason,
        "budget_bytes": state.pipeline.quarantine.keep_bytes,
        "disks": marks(state.hot),
    }
    yield Begin(QUARANTINE, path, task, SourceWork())


def _quarantined(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, records = state.sources[job.subject], state.records
    finding = records.convicted[source.path]
    records.quarantine.read_soon()
    if finding.reason == SET_INVALID:
        state.hot.published.discard(state.key(source)[:KEY16])
    else:
        yield Write(source.moved("quarantined", reason=finding.reason, column=finding.column))
        state.discard_build(source)
        about = {"path": source.path, "folder": str(result["folder"]), **finding.fields()}
        yield event("source_quarantined", **about)
    records.convicted.pop(source.path, None)
    state.retries.succeeded(source.path)


QUARANTINE = ShardActivity(
    kind="quarantine",
    module="stoker.corpus.quarantine.quarantine_worker",
    begin=_begin_quarantine,
    on_done=_quarantined,
    writes_to="state",
)
