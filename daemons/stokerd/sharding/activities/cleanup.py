"""Release and sweep: remove a built file, and what was discarded of a disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.store.errors import UnavailableError
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


def _to_sweep(state: State) -> list[str]:
    return [disk.sweeper for disk in state.disks if disk.litter]


def _begin_sweep(state: State, sweeper: str) -> Iterator[Effect]:
    disk = _disk_of(state, sweeper)
    yield Begin(SWEEP, sweeper, {"remove": list(disk.litter), "disks": marks(disk)}, Work())
    disk.sweeping, disk.litter = tuple(disk.litter), []


def _swept(state: State, job: Job[Work], _result: Message) -> Iterator[Effect]:
    disk = _disk_of(state, job.subject)
    state.retries.succeeded(disk.sweeper)
    for path in disk.sweeping:
        if path not in disk.litter:
            disk.litter_of.pop(path, None)
    disk.sweeping = ()
    return iter(())


def _not_swept(state: State, job: Job[Work], outcome: Outcome) -> Iterator[Effect]:
    disk = _disk_of(state, job.subject)
    disk.litter, disk.sweeping = [*disk.litter, *disk.sweeping], ()
    state.retries.failed(disk.sweeper)
    yield Alert("sweep_failed", disk.place, fields={"place": disk.place, "reason": outcome.reason})
    if state.context.once and state.retries.failures(disk.sweeper) >= TRIES_ONCE:
        raise UnavailableError(f"{disk.root}: {outcome.reason}; is the disk there?")


def _disk_of(state: State, sweeper: str) -> Disk:
    return next(disk for disk in state.disks if disk.sweeper == sweeper)


_cleanup = partial(ShardActivity, module=MODULE, is_reusable=True)
RELEASE = _cleanup(kind="release", begin=_begin_release, on_done=_released)
SWEEP = _cleanup(kind="sweep", due=_to_sweep, begin=_begin_sweep, on_done=_swept, on_end=_not_swept)
