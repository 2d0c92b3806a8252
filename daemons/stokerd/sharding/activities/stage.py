"""Stage: brings one source's file to hot."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stokerd.sharding.activities import base
from stokerd.sharding.activities.base import Message, ShardActivity, marks
from stokerd.sharding.effects import Begin, Effect, Write, event
from stokerd.sharding.state import SourceWork, State


def begin(state: State, path: str) -> Iterator[Effect]:
    """Stages the path's file; also decodes its text if the tokenizer is to be trained on it."""
    source, receipt, pipeline = state.sources[path], state.records.receipts[path], state.pipeline
    task = {
        "root": str(pipeline.source_root),
        "home": str(pipeline.source_home),
        "file": receipt.file,
        "size": source.size,
        "sha256": source.sha256,
        "target": state.parquet(source),
        "text_column": pipeline.dataset.text_column,
        "columns": base.columns(pipeline),
        "floor": pipeline.stage.free_floor,
        "decode": state.records.pinning.trains,
        "disks": marks(state.hot),
    }
    yield Begin(STAGE, path, task, SourceWork(receipt=receipt))


def on_message(_state: State, job: Job[SourceWork], message: Message) -> Iterator[Effect]:
    """Records the place being read, which may be blamed for a death."""
    if message["kind"] == "preflight":
        job.facts.row_group = base.FOOTER
    elif "row_groups" in message:
        job.facts.row_group = int(message["row_groups"])
    return iter(())


def on_done(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
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


def on_end(state: State, job: Job[SourceWork], outcome: Outcome) -> Iterator[Effect]:
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
    begin=begin,
    on_message=on_message,
    on_done=on_done,
    on_end=on_end,
    writes_to="hot",
)
