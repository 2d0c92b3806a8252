"""The hot and the warm disk: the lister that owns and lists each, and the sweep of leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from stoker.config.checks import disk_faults
from stoker.config.load import refuse
from stoker.corpus.records.sources import PUBLISHED
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.disk_contents import ScanResult, reconcile_hot, reconcile_warm
from stoker.kit.workers.pool import Job
from stoker.store.errors import LockHeld, UnavailableError
from stokerd.sharding.activities.base import ShardActivity, copy_lost, end_once, set_gone
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import ANSWERS_WITHIN_S, Disk, marks
from stokerd.sharding.effects import Alert, AlertOver, Begin, Effect, Send, StartOver
from stokerd.sharding.work import Message, Work

SWEPT_AT_ONCE = 1000  # paths: a task is one line of at most 4 MiB
# The events of a disk that goes away and comes back.
AWAY: Mapping[str, tuple[str, str]] = {
    "hot": ("list_failed", "list_succeeded"),
    "warm": ("warm_unavailable", "warm_available"),
}
ON_HOT = {"staged", "building", *PUBLISHED}


# List: owns a disk and brings the records in line with its contents


def tend(dataset: DatasetState) -> Iterator[Effect]:
    """Keeps the disks owned, and requests a look or a measure when due."""
    yield from LIST.start_due(dataset)
    for disk in dataset.machine.disks:
        if disk.is_hanging:  # checked before the lister is given up: the mount may answer again
            yield _unavailable(disk, f"no answer for {ANSWERS_WITHIN_S:.0f} s")
        if disk.lister in dataset.pool and (question := disk.question(dataset.sources)) is not None:
            yield Send(disk.lister, question)


def begin(dataset: DatasetState, lister: str) -> Iterator[Effect]:
    """Starts a worker that holds the owner lock of hot or warm."""
    disk, sources, pipeline = _disk_of(dataset, lister), dataset.sources.values(), dataset.pipeline
    is_hot = disk.place == "hot"
    expected = sum(
        source.state in ON_HOT and not source.evicted if is_hot else source.on_warm for source in sources
    )
    names = {"role": disk.place, "root": str(disk.root), "dataset": pipeline.dataset.name}
    task = {**names, "owner": pipeline.owner, "expected": expected}
    yield Begin(dataset.name, LIST, lister, task, Work())


def on_message(dataset: DatasetState, job: Job[Work], message: Message) -> Iterator[Effect]:
    """Handles a lister's reports: ownership, contents, free space."""
    disk = _disk_of(dataset, job.subject)
    match message["kind"]:
        case "ready":
            disk.is_owned = True
            disk.look_soon()
        case "seen":
            disk.answered()
            dataset.retries.succeeded(disk.lister)
            yield from _agree(dataset, disk, message)
        case "measured":
            disk.measured(message)
            yield from _measured(dataset, disk)


def _measured(dataset: DatasetState, disk: Disk) -> Iterator[Effect]:
    if disk.place == "hot" and not disk.fits and disk.size is not None:
        refuse(dataset.pipeline, disk_faults(dataset.pipeline, disk.size.total_bytes))
        disk.fits = True  # as of the start: a disk that shrinks later does not end the daemon
    word, is_hot = f"{disk.place}_read_only", disk.place == "hot"
    if disk.is_writable:
        yield AlertOver(word, tell="hot_writable" if is_hot else "")
        return
    yield Alert(word, fields={"reason": disk.trouble})
    if is_hot and dataset.context.once:
        raise UnavailableError(disk.trouble)


def _agree(dataset: DatasetState, disk: Disk, message: Message) -> Iterator[Effect]:
    """Brings the records in line with the contents of the disk."""
    sources, pipeline, is_hot = dataset.sources, dataset.pipeline, disk.place == "hot"
    seen, untouched = ScanResult.of(message), disk.untouched(sources, dataset.pool.busy)
    disk.building_bytes, disk.partial = dict(seen.building_bytes), seen.partial
    if pipeline.warm_layout is None or is_hot:
        found = reconcile_hot(pipeline.hot_layout, seen, untouched)
    else:
        found = reconcile_warm(pipeline.warm_layout, seen, untouched, gone_before=disk.gone)
    for path in found.lost:
        if is_hot:
            yield from set_gone(dataset, sources[path], "its shard set is not on hot")
        else:
            yield from copy_lost(sources[path], "its copy is not on warm")
    for path, reason in found.renew:
        disk.published.discard(sources[path].key16)
        yield StartOver(sources[path], reason, "warning")
        dataset.retries.succeeded(path)  # this was the cause of its failures
    if not disk.is_agreed:  # on a later look, an apparent leftover may be a set being made
        disk.discard(*found.remove)
        for path, file in found.parquet:
            disk.discard(file, of=path)
    disk.gone = found.gone
    disk.looked(seen.published)
    away, back = AWAY[disk.place]
    yield AlertOver(away, tell=back, fields={"path": str(disk.root)})


def on_end(dataset: DatasetState, job: Job[Work], outcome: Outcome) -> Iterator[Effect]:
    """Records that the disk is not owned; raises LockHeld when another pipeline owns it."""
    disk = _disk_of(dataset, job.subject)
    # Checked by name: a lister that ends because this daemon stops has the same exit code.
    if outcome.error == LockHeld.__name__:
        raise LockHeld(outcome.reason)
    disk.lost(outcome.reason if outcome.code == UnavailableError.exit_code else "")
    dataset.retries.failed(disk.lister)
    yield _unavailable(disk, outcome.reason)
    end_once(dataset, disk.lister, _missing(disk, outcome.reason))


def _unavailable(disk: Disk, reason: str) -> Effect:
    if disk.place == "warm":
        reason += "; what is on hot is used, copies wait; it is retried"
    return Alert(AWAY[disk.place][0], fields={"path": str(disk.root), "reason": reason})


def _missing(disk: Disk, reason: str) -> UnavailableError:
    return UnavailableError(f"{disk.root}: {reason}; is the disk there?")


def _disk_of(dataset: DatasetState, subject: str) -> Disk:
    """Returns the disk of a lister or of a sweep."""
    return next(disk for disk in dataset.machine.disks if subject in (disk.lister, disk.sweeper))


LIST = ShardActivity(
    kind="list",
    module="stoker.corpus.staging.lister_worker",
    silent_s=60.0,
    keep_open=True,
    due=lambda dataset: [disk.lister for disk in dataset.machine.disks],
    begin=begin,
    on_message=on_message,
    on_end=on_end,
)

# Sweep: removes leftovers


@dataclass(kw_only=True)
class SweepWork(Work):
    paths: list[str]


def _begin_sweep(dataset: DatasetState, sweeper: str) -> Iterator[Effect]:
    disk = _disk_of(dataset, sweeper)
    paths = list(islice(disk.litter, SWEPT_AT_ONCE))
    task = {"remove": paths, "disks": marks(disk)}
    yield Begin(dataset.name, SWEEP, sweeper, task, SweepWork(paths=paths))


def _swept(dataset: DatasetState, job: Job[SweepWork], result: Message) -> Iterator[Effect]:
    """Forgets what was removed; what could not be removed comes last, after a delay."""
    litter, failed = _disk_of(dataset, job.subject).litter, result["failed"]
    for path in job.facts.paths:
        of = litter.pop(path, None)
        if path in failed:
            litter[path] = of
    if failed:
        yield from _delay_sweep(dataset, job, next(iter(failed.values())))
    else:
        dataset.retries.succeeded(job.subject)


def _not_swept(dataset: DatasetState, job: Job[SweepWork], outcome: Outcome) -> Iterator[Effect]:
    yield from _delay_sweep(dataset, job, outcome.reason)


def _delay_sweep(dataset: DatasetState, job: Job[SweepWork], reason: str) -> Iterator[Effect]:
    disk = _disk_of(dataset, job.subject)
    dataset.retries.failed(disk.sweeper)
    yield Alert("sweep_failed", disk.place, fields={"place": disk.place, "reason": reason})
    end_once(dataset, disk.sweeper, _missing(disk, reason))


SWEEP = ShardActivity(
    kind="sweep",
    module="stoker.corpus.staging.cleanup_worker",
    is_reusable=True,
    due=lambda dataset: [disk.sweeper for disk in dataset.machine.disks if disk.litter],
    begin=_begin_sweep,
    on_done=_swept,
    on_end=_not_swept,
)
