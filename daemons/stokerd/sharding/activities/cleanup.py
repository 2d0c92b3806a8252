"""Release and sweep: remove a built file, and what was discarded of a disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(kw_only=True)
class SweepWork(Work):
    """`paths` are being removed."""

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


_cleanup = partial(ShardActivity, module=MODULE, is_reusable=True)
RELEASE = _cleanup(kind="release", begin=_begin_release, on_done=_released)
SWEEP = _cleanup(
    kind="sweep",
    due=lambda state: [disk.sweeper for disk in state.disks if disk.litter],
    begin=_begin_sweep,
    on_done=_swept,
    on_end=_not_swept,
)
