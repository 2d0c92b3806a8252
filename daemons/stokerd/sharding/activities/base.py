"""Base of the stage-shard loop's job kinds, and the effects that job results have on a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from stoker.corpus.readers.finding import SET_INVALID, Finding
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Attempt, Outcome, convicted
from stoker.corpus.staging.disk_contents import Growth
from stoker.kit.workers.pool import Activity, Job
from stoker.observe.ledger import LOOK_S, Place
from stoker.observe.machine import MemoryFacts
from stoker.store.errors import StokerError
from stokerd.sharding.effects import Dispute, Effect, StartOver, Write, event

if TYPE_CHECKING:
    from stokerd.sharding.activities.disks import Disk
    from stokerd.sharding.state import State

Message = Mapping[str, Any]

# Without a message or CPU time. For writers to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0
TRIES_ONCE = 5  # with --once: tries before a repeated failure ends the daemon
FOOTER = -1  # in place of a row group: the footer was being read


@dataclass(kw_only=True)
class Work:
    """The loop's record of a job besides its worker; `memory` is the memory state before the job."""

    memory: MemoryFacts | None = None


@dataclass(kw_only=True)
class SourceWork(Work):
    """Work on a source's file or set, with its progress: that place may be blamed for a death.

    `row_group` was being read last, `reached` is the row group and row that its last commit ends before.
    """

    receipt: Receipt | None = None
    row_group: int | None = None
    reached: tuple[int, int] = (0, 0)
    is_asked: bool = False  # a proof of a published set, by request


@dataclass(kw_only=True)
class BuildWork(SourceWork):
    """A build; `tokens` are durable, `asks` is (bytes written, bytes needed) of its request for space."""

    attempt: Attempt | None = None
    is_encoding: bool = False
    is_resumed: bool = False
    tokens: int | None = None
    asks: tuple[int, int] | None = None
    refused: Growth | None = None


W = TypeVar("W", bound=SourceWork)


def failed(state: State, job: Job[W], outcome: Outcome) -> Iterator[Effect]:
    """Yields the effects of an unsuccessful end, for any job on a source."""
    source = state.sources[job.subject]
    state.hot.look_soon()  # shows whether its input or the disk is gone, and how much is built already
    match outcome.kind:
        case "bad":
            state.records.convicted[source.path] = Finding.of(outcome.result)
        case "changed":
            yield from dispute(state, source)
        case "disk_full":
            state.retries.retry_in(source.path, LOOK_S)
            state.pauses.disk_full(state, job, outcome.reason)
        case "died":
            if job.facts.row_group is not None:
                source = replace(source, deaths=(*source.deaths, job.facts.row_group))
            if (guilty := convicted(source.deaths)) is not None:
                words = f"{outcome.reason}; twice at the same place"
                finding = Finding("worker_died", words, None if guilty == FOOTER else guilty)
                state.records.convicted[source.path] = finding
            yield from try_again(state, job, source, outcome.reason)
        case _:
            yield from try_again(state, job, source, outcome.reason)


def try_again(
    state: State, job: Job[W], source: Source, reason: str, *, wait_s: float | None = None
) -> Iterator[Effect]:
    """Delays the source by `wait_s` seconds, by default longer after each failure."""
    if wait_s is None:
        wait_s = state.retries.failed(source.path)
    else:
        state.retries.retry_in(source.path, wait_s)
    if job.kind == "build":
        source = replace(source, attempts=source.attempts + 1)
    if source != state.sources[source.path]:
        yield Write(source)
    about = {"row_group": job.facts.row_group, "retry_in_s": round(wait_s, 1)}
    yield event(f"{job.kind}_failed", path=source.path, reason=reason, **about)


def end_once(state: State, subject: str, error: StokerError) -> None:
    """Raises the error after the last try that --once allows the subject."""
    if state.context.once and state.retries.failures(subject) >= TRIES_ONCE:
        raise error


def dispute(state: State, source: Source) -> Iterator[Effect]:
    """Starts the source over after a mismatch with its receipt, which the download watchdog then checks."""
    yield from dispute_receipt(state, source, state.records.receipts.get(source.path))
    state.retries.failed(source.path)
    state.discard_build(source)
    yield StartOver(source, "its content is not what its receipt says", "warning")


def dispute_receipt(state: State, source: Source, receipt: Receipt | None) -> Iterator[Effect]:
    """Disputes a receipt once; a receipt of other content written since needs no dispute."""
    disputed = state.records.disputed
    if receipt is not None and receipt.sha256 == source.sha256 and disputed.get(source.path) is not receipt:
        yield Dispute(source.path, source.sha256)
        disputed[source.path] = receipt


def reject_set(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """Marks the set at the source's target for quarantine, which begins once no record claims the set."""
    state.records.convicted[source.path] = Finding(SET_INVALID, reason)
    yield event("shard_set_invalid", path=source.path, reason=reason)
    if source.state in PUBLISHED:
        yield from set_gone(state, source, f"its shard set on hot is wrong: {reason}")


def set_gone(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """Records that the source's set left hot: its copy on warm remains, else the set is made again."""
    key = source.key16
    state.hot.published.discard(key)
    if not source.on_warm:
        yield StartOver(source, reason, "warning")
        return
    yield Write(replace(source, evicted=True, evicting=False))
    reason = f"{reason}; its copy on warm is there"
    yield event("shard_set_lost", path=source.path, key=key, reason=reason)


def copy_lost(source: Source, reason: str) -> Iterator[Effect]:
    """Records that the copy of a set on hot is missing or wrong, so that the set is copied again."""
    yield Write(source.moved("proven", on_warm=False, evicting=False))
    about = {"path": source.path, "key": source.key16}
    yield event("shard_set_lost", **about, reason=f"{reason}; it is copied again", place="warm")


@dataclass(frozen=True, kw_only=True)
class ShardActivity(Activity):
    """A kind of job and its handlers.

    `due` are the subjects to begin on now without a decision of the schedule. `begin` starts the job on a
    subject, `on_message` takes its worker's messages, `on_done` its result, `on_end` any other end, or every
    end where `on_done` is missing. `writes_to` is the disk meant when a worker reports a full disk.
    """

    begin: Callable[[State, str], Iterator[Effect]]
    on_done: Callable[[State, Job[Any], Message], Iterator[Effect]] | None = None
    on_end: Callable[[State, Job[Any], Outcome], Iterator[Effect]] = failed
    on_message: Callable[[State, Job[Any], Message], Iterator[Effect]] = lambda *_: iter(())
    due: Callable[[State], Iterable[str]] = lambda _state: ()
    writes_to: Place | None = None

    def start_due(self, state: State) -> Iterator[Effect]:
        """Begins on each due subject, unless a job works on it or its retry time is not reached."""
        for subject in self.due(state):
            if subject not in state.pool and state.retries.allows(subject):
                yield from self.begin(state, subject)

    def end(self, state: State, job: Job[Any], outcome: Outcome) -> Iterator[Effect]:
        """Yields the effects of a job's end, and has the disks measured again."""
        state.progress.ends[self.kind][outcome.kind] += 1
        for disk in state.disks:
            disk.measure_soon()
        if outcome.kind in ("done", "recycled"):
            state.pauses.disk_works(self.writes_to)
        if outcome.kind == "done" and self.on_done is not None:
            return self.on_done(state, job, outcome.result)
        return self.on_end(state, job, outcome)


def marks(*disks: Disk | None) -> list[dict[str, Any]]:
    """Returns the owner records by which a worker recognizes these disks."""
    return [dict(disk.mark) for disk in disks if disk is not None and disk.mark]
