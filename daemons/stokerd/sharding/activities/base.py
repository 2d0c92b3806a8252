"""Base of the stage-shard loop's job kinds, and the effects that job results have on a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stoker.corpus.readers.finding import SET_INVALID, Finding
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Outcome, convicted
from stoker.kit.workers.pool import Activity, Job
from stoker.observe.ledger import LOOK_S
from stoker.store.errors import StokerError
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import marks
from stokerd.sharding.effects import Dispute, Effect, StartOver, Write, event
from stokerd.sharding.work import Message

# Without a message or CPU time. For writers to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0
TRIES_ONCE = 5  # with --once: tries before a repeated failure ends the daemon
FOOTER = -1  # in place of a row group: the footer was being read


def failed(dataset: DatasetState, job: Job[Any], outcome: Outcome) -> Iterator[Effect]:
    """Yields the effects of an unsuccessful end, for any job on a source."""
    source = dataset.sources[job.subject]
    dataset.hot.look_soon()  # shows whether its input or the disk is gone, and how much is built already
    match outcome.kind:
        case "bad":
            dataset.convicted[source.path] = Finding.of(outcome.result)
        case "changed":
            yield from dispute(dataset, source)
        case "disk_full":
            dataset.retries.retry_in(source.path, LOOK_S)
            dataset.pauses.disk_full(job, outcome.reason)
        case "died":
            if job.facts.row_group is not None:
                source = replace(source, deaths=(*source.deaths, job.facts.row_group))
            if (guilty := convicted(source.deaths)) is not None:
                words = f"{outcome.reason}; twice at the same place"
                finding = Finding("worker_died", words, None if guilty == FOOTER else guilty)
                dataset.convicted[source.path] = finding
            yield from try_again(dataset, job, source, outcome.reason)
        case _:
            yield from try_again(dataset, job, source, outcome.reason)


def try_again(
    dataset: DatasetState, job: Job[Any], source: Source, reason: str, *, wait_s: float | None = None
) -> Iterator[Effect]:
    """Delays the source by `wait_s` seconds, by default longer after each failure."""
    if wait_s is None:
        wait_s = dataset.retries.failed(source.path)
    else:
        dataset.retries.retry_in(source.path, wait_s)
    if job.kind == "build":
        source = replace(source, attempts=source.attempts + 1)
    if source != dataset.sources[source.path]:
        yield Write(source)
    about = {"row_group": job.facts.row_group, "retry_in_s": round(wait_s, 1)}
    yield event(f"{job.kind}_failed", path=source.path, reason=reason, **about)


def end_once(dataset: DatasetState, subject: str, error: StokerError) -> None:
    """Raises the error after the last try that --once allows the subject."""
    if dataset.context.once and dataset.retries.failures(subject) >= TRIES_ONCE:
        raise error


def dispute(dataset: DatasetState, source: Source) -> Iterator[Effect]:
    """Starts the source over after a mismatch with its receipt, which the download watchdog then checks."""
    yield from dispute_receipt(dataset, source, dataset.receipts.get(source.path))
    dataset.retries.failed(source.path)
    dataset.discard_build(source)
    yield StartOver(source, "its content is not what its receipt says", "warning")


def dispute_receipt(dataset: DatasetState, source: Source, receipt: Receipt | None) -> Iterator[Effect]:
    """Disputes a receipt once; a receipt of other content written since needs no dispute."""
    disputed = dataset.disputed
    if receipt is not None and receipt.sha256 == source.sha256 and disputed.get(source.path) is not receipt:
        yield Dispute(source.path, source.sha256)
        disputed[source.path] = receipt


def reject_set(dataset: DatasetState, source: Source, reason: str) -> Iterator[Effect]:
    """Marks the set at the source's target for quarantine, which begins once no record claims the set."""
    dataset.convicted[source.path] = Finding(SET_INVALID, reason)
    yield event("shard_set_invalid", path=source.path, reason=reason)
    if source.state in PUBLISHED:
        yield from set_gone(dataset, source, f"its shard set on hot is wrong: {reason}")


def set_gone(dataset: DatasetState, source: Source, reason: str) -> Iterator[Effect]:
    """Records that the source's set left hot: its copy on warm remains, else the set is made again."""
    key = source.key16
    dataset.hot.published.discard(key)
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


def proof_task(dataset: DatasetState, place: str, path: str) -> dict[str, Any]:
    """Returns the task that proves the set of the path's content on a disk."""
    source, disks = dataset.sources[path], (dataset.hot,) if place == "hot" else dataset.machine.disks
    key = dataset.key(source)
    return {"sets": [{"path": str(dataset.set_on(place, source, key)), "key": key}], "disks": marks(*disks)}


@dataclass(frozen=True, kw_only=True)
class ShardActivity(Activity):
    """A kind of job and its handlers.

    `due` are the subjects to begin on now without a decision of the schedule. `begin` starts the job on a
    subject, `on_message` takes its worker's messages, `on_done` its result, `on_end` any other end, or every
    end where `on_done` is missing.
    """

    begin: Callable[[DatasetState, str], Iterator[Effect]]
    on_done: Callable[[DatasetState, Job[Any], Message], Iterator[Effect]] | None = None
    on_end: Callable[[DatasetState, Job[Any], Outcome], Iterator[Effect]] = failed
    on_message: Callable[[DatasetState, Job[Any], Message], Iterator[Effect]] = lambda *_: iter(())
    due: Callable[[DatasetState], Iterable[str]] = lambda _dataset: ()

    def start_due(self, dataset: DatasetState) -> Iterator[Effect]:
        """Begins on each due subject, unless a job works on it or its retry time is not reached."""
        for subject in self.due(dataset):
            if subject not in dataset.pool and dataset.retries.allows(subject):
                yield from self.begin(dataset, subject)

    def end(self, dataset: DatasetState, job: Job[Any], outcome: Outcome) -> Iterator[Effect]:
        """Yields the effects of a job's end, and has the disks measured again."""
        dataset.progress.ends[self.kind][outcome.kind] += 1
        for disk in dataset.machine.disks:
            disk.measure_soon()
        if outcome.kind in ("done", "recycled"):
            dataset.pauses.disk_works(self.kind)
        if outcome.kind == "done" and self.on_done is not None:
            return self.on_done(dataset, job, outcome.result)
        return self.on_end(dataset, job, outcome)
