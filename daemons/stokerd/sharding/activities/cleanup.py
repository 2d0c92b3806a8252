"""Release and sweep: remove a built file, and what was discarded of a disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.store.errors import UnavailableError
from stokerd.sharding.activities.base import ShardActivity, marks
from stokerd.sharding.activities.transitions import failed
from stokerd.sharding.effects import Alert, Begin, Effect, Write, event
from stokerd.sharding.state import TRIES_ONCE, SourceWork, State, Work

MODULE = "stoker.corpus.staging.cleanup_worker"


# Release


def _begin_release(state: State, path: str) -> Iterator[Effect]:
    task = {"remove": [state.parquet(state.sources[path])], "disks": marks(state.hot)}
    yield Begin(RELEASE, path, task, SourceWork())


def _released(state: State, job: Job[SourceWork], outcome: Outcome) -> Iterator[Effect]:
    source = state.sources[job.subject]
    state.hot.measure_soon()
    if outcome.kind != "done":
        yield from failed(state, job, source, outcome)
        return
    yield Write(source.moved("released"))
    yield event("source_released", path=source.path)
    state.retries.succeeded(source.path)


# Sweep


def _begin_sweep(state: State, place: str) -> Iterator[Effect]:
    disk = next(disk for disk in state.disks if disk.place == place)
    yield Begin(SWEEP, disk.sweeper, {"remove": list(disk.litter), "disks": marks(disk)}, Work())
    disk.sweeping, disk.litter = tuple(disk.litter), []


def _swept(state: State, job: Job[Work], outcome: Outcome) -> Iterator[Effect]:
    disk = next(disk for disk in state.disks if disk.sweeper == job.subject)
    removed, disk.sweeping = disk.sweeping, ()
    disk.measure_soon()
    if outcome.kind == "done":
        state.retries.succeeded(disk.sweeper)
        for path in removed:
            if path not in disk.litter:
                disk.litter_of.pop(path, None)
        return
    disk.litter += removed
    state.retries.failed(disk.sweeper)
    yield Alert("sweep_failed", disk.place, fields={"place": disk.place, "reason": outcome.reason})
    if state.context.once and state.retries.failures(disk.sweeper) >= TRIES_ONCE:
        raise UnavailableError(f"{disk.root}: {outcome.reason}; is the disk there?")


_cleanup = partial(ShardActivity, module=MODULE)
RELEASE = _cleanup(kind="release", is_reusable=True, begin=_begin_release, on_end=_released)
SWEEP = _cleanup(kind="sweep", is_reusable=True, begin=_begin_sweep, on_end=_swept)
