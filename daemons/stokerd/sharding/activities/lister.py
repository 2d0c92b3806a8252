"""List: owns the hot or the warm disk, lists its contents, and brings the records in line with them."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.config.checks import disk_faults
from stoker.config.load import refuse
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import PUBLISHED
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.disk_contents import Seen
from stoker.corpus.staging.reconcile import reconcile_hot, reconcile_warm
from stoker.kit.workers.pool import Job
from stoker.store.errors import LockHeld, UnavailableError
from stokerd.sharding.activities.base import Message, ShardActivity, copy_lost, set_gone
from stokerd.sharding.effects import Alert, AlertOver, Begin, Effect, Send, StartOver
from stokerd.sharding.facts.disks import ANSWERS_WITHIN_S, Disk
from stokerd.sharding.state import TRIES_ONCE, State, Work

ON_HOT = {"staged", "building", *PUBLISHED}


def tend(state: State) -> Iterator[Effect]:
    """Keeps the disks owned, and requests a look or a measure when due."""
    yield from LIST.start_due(state)
    for disk in state.disks:
        if disk.is_hanging:  # checked before the lister is given up: the mount may answer again
            yield _unavailable(disk, f"no answer for {ANSWERS_WITHIN_S:.0f} s")
        if disk.lister in state.pool and (question := disk.question(state.sources)) is not None:
            yield Send(disk.lister, question)


def begin(state: State, lister: str) -> Iterator[Effect]:
    """Starts a worker that holds the owner lock of hot or warm."""
    disk, sources, pipeline = _disk_of(state, lister), state.sources.values(), state.pipeline
    if disk.place == "hot":
        expected = sum(1 for source in sources if source.state in ON_HOT and not source.evicted)
    else:
        expected = sum(1 for source in sources if source.on_warm)
    names = {"role": disk.place, "root": str(disk.root), "dataset": pipeline.dataset.name}
    yield Begin(LIST, lister, {**names, "owner": pipeline.owner, "expected": expected}, Work())


def on_message(state: State, job: Job[Work], message: Message) -> Iterator[Effect]:
    """Handles a lister's reports: ownership, contents, free space."""
    disk = _disk_of(state, job.subject)
    disk.heard()
    match message["kind"]:
        case "ready":
            disk.owned()
        case "seen":
            disk.answered()
            state.retries.succeeded(disk.lister)
            yield from _agree(state, disk, message)
        case "measured":
            disk.measured(message)
            yield from _measured(state, disk)


def _measured(state: State, disk: Disk) -> Iterator[Effect]:
    if disk.place == "hot" and not disk.fits and disk.size is not None:
        refuse(state.pipeline, disk_faults(state.pipeline, disk.size.total_bytes))
        disk.fits = True  # as of the start: a disk that shrinks later does not end the daemon
    word = f"{disk.place}_read_only"
    if disk.is_writable:
        yield AlertOver(word, tell="hot_writable" if disk.place == "hot" else "")
    elif disk.place == "warm":
        yield Alert(word, fields={"reason": f"{disk.trouble}; remount it writable"})
    else:
        yield Alert(word, level="error", fields={"reason": disk.trouble})
        if state.context.once:
            raise UnavailableError(disk.trouble)


def _agree(state: State, disk: Disk, message: Message) -> Iterator[Effect]:
    """Brings the records in line with the contents of the disk."""
    sources, pipeline, is_hot = state.sources, state.pipeline, disk.place == "hot"
    seen, untouched = Seen.of(message), disk.untouched(sources, state.pool.busy)
    disk.building_bytes, disk.partial = dict(seen.building_bytes), seen.partial
    if pipeline.warm_layout is None or is_hot:
        found = reconcile_hot(pipeline.hot_layout, seen, untouched)
    else:
        found = reconcile_warm(pipeline.warm_layout, seen, untouched, gone_before=disk.gone)
    for path in found.lost:
        if is_hot:
            yield from set_gone(state, sources[path], "its shard set is not on hot")
        else:
            yield from copy_lost(sources[path], "its copy is not on warm")
    for path, reason in found.renew:
        disk.published.discard(str(sources[path].key)[:KEY16])
        yield StartOver(sources[path], reason, "warning" if is_hot else "error")
        state.retries.succeeded(path)  # this was the cause of its failures
    if not disk.is_agreed:  # on a later look, an apparent leftover may be a set being made
        disk.discard(*found.remove)
        for path, file in found.parquet:
            disk.discard(file, of=path)
    disk.gone = found.gone
    disk.looked(seen.published)
    if is_hot:
        yield AlertOver("list_failed", tell="list_succeeded")
    else:
        yield AlertOver("warm_unavailable", tell="warm_available", fields={"path": str(disk.root)})


def on_end(state: State, job: Job[Work], outcome: Outcome) -> Iterator[Effect]:
    """Records that the disk is not owned; raises LockHeld when another pipeline owns it."""
    disk = _disk_of(state, job.subject)
    # Checked by name: a lister that ends because this daemon stops has the same exit code.
    if outcome.error == LockHeld.__name__:
        raise LockHeld(outcome.reason)
    disk.lost(outcome.reason if outcome.code == UnavailableError.exit_code else "")
    state.retries.failed(disk.lister)
    yield _unavailable(disk, outcome.reason)
    if state.context.once and state.retries.failures(disk.lister) >= TRIES_ONCE:
        raise UnavailableError(f"{disk.root}: {outcome.reason}; is the disk there?")


def _unavailable(disk: Disk, reason: str) -> Effect:
    if disk.place == "hot":
        return Alert("list_failed", fields={"reason": reason})
    advice = "what is on hot is used, copies wait; it is tried again for ever"
    return Alert("warm_unavailable", fields={"path": str(disk.root), "reason": f"{reason}; {advice}"})


def _disk_of(state: State, lister: str) -> Disk:
    return next(disk for disk in state.disks if disk.lister == lister)


LIST = ShardActivity(
    kind="list",
    module="stoker.corpus.staging.lister_worker",
    silent_s=60.0,
    keep_open=True,
    due=lambda state: [disk.lister for disk in state.disks],
    begin=begin,
    on_message=on_message,
    on_end=on_end,
)
