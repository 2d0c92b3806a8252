"""Quarantine: move a source's bad file, or a wrong shard set, off hot into the state's quarantine."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.corpus.records.index import KEY16
from stoker.corpus.staging.finding import SET_INVALID
from stoker.kit.workers.pool import Job
from stoker.store.names import record_name
from stokerd.sharding.activities.base import Message, ShardActivity, marks
from stokerd.sharding.effects import Begin, Effect, Write, event
from stokerd.sharding.state import SourceWork, State


def begin(state: State, path: str) -> Iterator[Effect]:
    """Set aside the path's file, or the set at its target, as the finding is about."""
    source, finding = state.sources[path], state.records.convicted[path]
    kind, thing, key = "parquet", state.parquet(source), ""
    if finding.reason == SET_INVALID:
        key = state.key(source)
        kind, thing = "shards", str(state.set_on("hot", source, key))
    task = {
        "directory": str(state.pipeline.layout.quarantine),
        "kind": kind,
        "name": record_name(source.dataset, source.path),
        "thing": thing,
        "reason": {
            "path": path,
            "sha256": source.sha256,
            **finding.fields(),
            **({"key": key} if key else {}),
        },
        "budget_bytes": state.pipeline.quarantine.keep_bytes,
        "disks": marks(state.hot),
    }
    yield Begin(QUARANTINE, path, task, SourceWork(aside_key=key[:KEY16]))


def on_done(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
    source, records = state.sources[job.subject], state.records
    records.quarantine.read_soon()
    if job.facts.aside_key:
        records.convicted.pop(source.path, None)
        state.hot.published.discard(job.facts.aside_key)
    else:
        finding = records.convicted[source.path]
        yield Write(source.moved("quarantined", reason=finding.reason, column=finding.column))
        del records.convicted[source.path]
        state.discard_build(source)
        about = {"path": source.path, "folder": str(result["folder"]), **finding.fields()}
        yield event("source_quarantined", "warning", **about)
    state.retries.succeeded(source.path)


QUARANTINE = ShardActivity(
    kind="quarantine",
    module="stoker.corpus.quarantine.quarantine_worker",
    begin=begin,
    on_done=on_done,
    writes_to="state",
)
