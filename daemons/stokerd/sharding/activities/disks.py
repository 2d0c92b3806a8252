"""The hot and the warm disk: the lister that owns and lists each, and the sweep of leftovers."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.config.checks import disk_faults
from stoker.config.load import refuse
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.disk_contents import Seen, reconcile_hot, reconcile_warm
from stoker.kit.workers.pool import Job
from stoker.observe.ledger import Disk as DiskSize
from stoker.observe.ledger import Place
from stoker.store.errors import LockHeld, UnavailableError
from stokerd.sharding.activities.base import (
    Message,
    ShardActivity,
    Work,
    copy_lost,
    end_once,
    marks,
    set_gone,
)
from stokerd.sharding.effects import Alert, AlertOver, Begin, Effect, Send, StartOver

if TYPE_CHECKING:
    from stokerd.sharding.state import State

ANSWERS_WITHIN_S = 15.0
LOOK_EVERY_S, MEASURE_EVERY_S = 30.0, 5.0
SWEPT_AT_ONCE = 1000  # paths: a task is one line of at most 4 MiB
# The events of a disk that goes away and comes back.
AWAY: Mapping[str, tuple[str, str]] = {
    "hot": ("list_failed", "list_succeeded"),
    "warm": ("warm_unavailable", "warm_available"),
}
ON_HOT = {"staged", "building", *PUBLISHED}


class Disk:
    """State of one disk: `published` is the first 16 digits of the key of each set on it, `size` its last
    measure, `is_measured` whether that measure is newer than every job that ended."""

    def __init__(self, place: Place, root: Path) -> None:
        self.place, self.root = place, root
        self.lister, self.sweeper = f"/{place}-lister", f"/{place}-sweep"  # never a source's path
        self.published: set[str] = set()
        self.size: DiskSize | None = None
        self.mark: Mapping[str, Any] = {}  # the owner record by which workers recognize this disk
        self.is_writable = True
        self.is_measured = self.is_owned = self.is_agreed = False
        self.why = ""  # the lister's reason why the disk is missing
        self.fits = False  # whether the disk is large enough for the configuration
        self.building_bytes: dict[str, int] = {}  # hot: built so far, by the first digits of the key
        self.partial: Mapping[str, int] = {}  # hot: bytes of unfinished copies, by file name
        self.gone: frozenset[str] = frozenset()  # warm: evicted sets that the last look did not find
        self.litter: dict[str, str | None] = {}  # paths to remove, each with its source's path if known
        self._born = time.monotonic()
        self._look_due = self._measure_due = 0.0
        self._asked_at: float | None = None  # when the unanswered look was requested
        self._silent_since: float | None = None
        self._number = self._needs = 0  # of the last measure requested, and of the first that counts
        self._believed: Mapping[str, Source] = {}  # the records as they were when the look began
        self._published_before: frozenset[str] = frozenset()

    # Looking and measuring

    def look_soon(self) -> None:
        self._look_due = 0.0

    def measure_soon(self) -> None:
        """Discards the last measure: a job that ended took or freed space."""
        self.is_measured = False
        self._needs = self._number + 1
        self._measure_due = 0.0

    def question(self, sources: Mapping[str, Source]) -> Mapping[str, Any] | None:
        """Returns the next request for the lister, None while none is due."""
        now = time.monotonic()
        if not self.is_owned:
            return None
        if self._asked_at is None and now >= self._look_due:
            self._asked_at, self._look_due = now, now + LOOK_EVERY_S
            self._believed, self._published_before = dict(sources), frozenset(self.published)
            return self._ask("look", now)
        return self._ask("measure", now) if now >= self._measure_due else None

    def _ask(self, what: str, now: float) -> Mapping[str, Any]:
        self._number += 1
        self._silent_since = self._silent_since or now
        self._measure_due = now + MEASURE_EVERY_S
        return {what: self._number}

    def untouched(self, sources: Mapping[str, Source], busy: Mapping[str, str]) -> dict[str, Source]:
        """Returns the records unchanged since the look began: only these can be compared with it."""
        believed = self._believed
        return {p: one for p, one in sources.items() if believed.get(p) is one and p not in busy}

    def answered(self) -> None:
        """Records an answered look: the next look may start even if this answer cannot be recorded."""
        self._asked_at, self.why = None, ""

    def looked(self, published: Collection[str]) -> None:
        """Records which sets a look found; the first look sets `published`, later looks only shrink it."""
        self.published -= self._published_before - set(published)
        if not self.is_agreed:
            self.published = set(published)
        self._believed, self._published_before = {}, frozenset()  # free the memory: sources may be many
        self.is_agreed = True

    def measured(self, message: Mapping[str, Any]) -> None:
        if self.is_hanging:
            self.look_soon()  # the disk answers again
        self.size, self.is_writable = DiskSize(**message["disk"]), bool(message["writable"])
        self.mark = message["owner"]
        self.is_measured = message["number"] >= self._needs
        self._silent_since = None if message["number"] == self._number else time.monotonic()

    def lost(self, why: str) -> None:
        """Records that the lister ended; `why` is its reason why the disk is missing."""
        self.is_owned = self.is_measured = False
        self.size, self.why = None, why
        self._asked_at = self._silent_since = None

    # Removing leftovers

    def discard(self, *paths: str, of: str | None = None) -> None:
        """Queues these paths for removal from the disk; work on the source `of` waits until then."""
        self.litter.update(dict.fromkeys(paths, of))

    # Condition

    @property
    def measure(self) -> DiskSize | None:
        """The disk's size; None while no current measure exists or work on the disk is not allowed."""
        return self.size if self.is_measured and self.is_known else None

    @property
    def is_seen(self) -> bool:
        return self.is_owned and self.is_agreed and self.size is not None

    @property
    def is_known(self) -> bool:
        """Whether work on the disk is allowed: hot must be writable, warm must answer."""
        return self.is_seen and (self.is_writable if self.place == "hot" else not self.is_hanging)

    @property
    def is_hanging(self) -> bool:
        """Whether the lister's answer is overdue."""
        since = self._silent_since
        return since is not None and time.monotonic() > since + ANSWERS_WITHIN_S

    @property
    def is_undecided(self) -> bool:
        """Whether the lister's first report is neither made nor overdue, and the lister has not failed."""
        return not self.is_seen and not self.why and time.monotonic() - self._born < ANSWERS_WITHIN_S

    @property
    def trouble(self) -> str:
        """Why the disk is not fully usable; empty when it was seen and no answer is overdue."""
        if not self.is_seen or self.is_hanging:
            return self.why or f"waiting for the {self.place} directory {self.root} to answer"
        if self.is_writable:
            return ""
        words = f"the {self.place} directory {self.root} is mounted read-only; remount it writable"
        return words if self.place == "hot" else f"{words}: until then no shard set is copied there"


# List: owns a disk and brings the records in line with its contents


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
    is_hot = disk.place == "hot"
    expected = sum(
        source.state in ON_HOT and not source.evicted if is_hot else source.on_warm for source in sources
    )
    names = {"role": disk.place, "root": str(disk.root), "dataset": pipeline.dataset.name}
    yield Begin(LIST, lister, {**names, "owner": pipeline.owner, "expected": expected}, Work())


def on_message(state: State, job: Job[Work], message: Message) -> Iterator[Effect]:
    """Handles a lister's reports: ownership, contents, free space."""
    disk = _disk_of(state, job.subject)
    match message["kind"]:
        case "ready":
            disk.is_owned = True
            disk.look_soon()
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
    word, is_hot = f"{disk.place}_read_only", disk.place == "hot"
    if disk.is_writable:
        yield AlertOver(word, tell="hot_writable" if is_hot else "")
        return
    yield Alert(word, fields={"reason": disk.trouble})
    if is_hot and state.context.once:
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
        disk.published.discard(sources[path].key16)
        yield StartOver(sources[path], reason, "warning")
        state.retries.succeeded(path)  # this was the cause of its failures
    if not disk.is_agreed:  # on a later look, an apparent leftover may be a set being made
        disk.discard(*found.remove)
        for path, file in found.parquet:
            disk.discard(file, of=path)
    disk.gone = found.gone
    disk.looked(seen.published)
    away, back = AWAY[disk.place]
    yield AlertOver(away, tell=back, fields={"path": str(disk.root)})


def on_end(state: State, job: Job[Work], outcome: Outcome) -> Iterator[Effect]:
    """Records that the disk is not owned; raises LockHeld when another pipeline owns it."""
    disk = _disk_of(state, job.subject)
    # Checked by name: a lister that ends because this daemon stops has the same exit code.
    if outcome.error == LockHeld.__name__:
        raise LockHeld(outcome.reason)
    disk.lost(outcome.reason if outcome.code == UnavailableError.exit_code else "")
    state.retries.failed(disk.lister)
    yield _unavailable(disk, outcome.reason)
    end_once(state, disk.lister, _missing(disk, outcome.reason))


def _unavailable(disk: Disk, reason: str) -> Effect:
    if disk.place == "warm":
        reason += "; what is on hot is used, copies wait; it is retried"
    return Alert(AWAY[disk.place][0], fields={"path": str(disk.root), "reason": reason})


def _missing(disk: Disk, reason: str) -> UnavailableError:
    return UnavailableError(f"{disk.root}: {reason}; is the disk there?")


def _disk_of(state: State, subject: str) -> Disk:
    """Returns the disk of a lister or of a sweep."""
    return next(disk for disk in state.disks if subject in (disk.lister, disk.sweeper))


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

# Sweep: removes leftovers


@dataclass(kw_only=True)
class SweepWork(Work):
    paths: list[str]


def _begin_sweep(state: State, sweeper: str) -> Iterator[Effect]:
    disk = _disk_of(state, sweeper)
    paths = list(islice(disk.litter, SWEPT_AT_ONCE))
    yield Begin(SWEEP, sweeper, {"remove": paths, "disks": marks(disk)}, SweepWork(paths=paths))


def _swept(state: State, job: Job[SweepWork], result: Message) -> Iterator[Effect]:
    """Forgets what was removed; what could not be removed comes last, after a delay."""
    litter, failed = _disk_of(state, job.subject).litter, result["failed"]
    for path in job.facts.paths:
        of = litter.pop(path, None)
        if path in failed:
            litter[path] = of
    if failed:
        yield from _delay_sweep(state, job, next(iter(failed.values())))
    else:
        state.retries.succeeded(job.subject)


def _not_swept(state: State, job: Job[SweepWork], outcome: Outcome) -> Iterator[Effect]:
    yield from _delay_sweep(state, job, outcome.reason)


def _delay_sweep(state: State, job: Job[SweepWork], reason: str) -> Iterator[Effect]:
    disk = _disk_of(state, job.subject)
    state.retries.failed(disk.sweeper)
    yield Alert("sweep_failed", disk.place, fields={"place": disk.place, "reason": reason})
    end_once(state, disk.sweeper, _missing(disk, reason))


SWEEP = ShardActivity(
    kind="sweep",
    module="stoker.corpus.staging.cleanup_worker",
    is_reusable=True,
    due=lambda state: [disk.sweeper for disk in state.disks if disk.litter],
    begin=_begin_sweep,
    on_done=_swept,
    on_end=_not_swept,
)
