"""Removals from hot: released parquet, discarded files of a disk, and moves into quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from stoker.corpus.records.index import KEY16
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.finding import SET_INVALID
from stoker.kit.workers.pool import Job
from stoker.store.errors import UnavailableError
from stoker.store.layout import record_name
from stokerd.sharding.activities.base import Message, ShardActivity, marks
from stokerd.sharding.effects import Alert, Begin, Effect, Write, event
from stokerd.sharding.facts.disks import Disk
from stokerd.sharding.state import TRIES_ONCE, SourceWork, State, Work

MODULE = "stoker.corpus.staging.cleanup_worker"


# Release


def _begin_release(state: State, path: str) -> Iterator[Effect]:
    task = {"remove": [state.parquet(state.sources[path])], "disks": marks(state.hot)}
    yield Begin(RELEASE, path, task, SourceWork())


def _released(state: State, job: Job[SourceWork], _result: Message) -> Iterator[Effect]:
    source = state.sources[job.subject]
    yield Write(source.moved("released"))
    yield event("source_released", path=source.path)
    state.retries.succeeded(source.path)


# Sweep


@dataclass(kw_only=True)
class SweepWork(Work):
    disk: Disk
    paths: list[str]


def _begin_sweep(state: State, sweeper: str) -> Iterator[Effect]:
    disk = next(disk for disk in state.disks if disk.sweeper == sweeper)
    paths = list(disk.litter)
    task = {"remove": paths, "disks": marks(disk)}
    yield Begin(SWEEP, sweeper, task, SweepWork(disk=disk, paths=paths))


def _swept(state: State, job: Job[SweepWork], _result: Message) -> Iterator[Effect]:
    state.retries.succeeded(job.subject)
    for path in job.facts.paths:
        job.facts.disk.litter.pop(path, None)
    return iter(())


def _not_swept(state: State, job: Job[SweepWork], outcome: Outcome) -> Iterator[Effect]:
    disk = job.facts.disk
    state.retries.failed(disk.sweeper)
    yield Alert("sweep_failed", disk.place, fields={"place": disk.place, "reason": outcome.reason})
    if state.context.once and state.retries.failures(disk.sweeper) >= TRIES_ONCE:
        raise UnavailableError(f"{disk.root}: {outcome.reason}; is the disk there?")


# Quarantine


def _begin_quarantine(state: State, path: str) -> Iterator[Effect]:
    """Sets aside the file, or the set at its target, according to the finding."""
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


def _quarantined(state: State, job: Job[SourceWork], result: Message) -> Iterator[Effect]:
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


_cleanup = partial(ShardActivity, module=MODULE, is_reusable=True)
RELEASE = _cleanup(kind="release", begin=_begin_release, on_done=_released)
SWEEP = _cleanup(
    kind="sweep",
    due=lambda state: [disk.sweeper for disk in state.disks if disk.litter],
    begin=_begin_sweep,
    on_done=_swept,
    on_end=_not_swept,
)
QUARANTINE = ShardActivity(
    kind="quarantine",
    module="stoker.corpus.quarantine.quarantine_worker",
    begin=_begin_quarantine,
    on_done=_quarantined,
    writes_to="state",
)
