"""Base of the stage-shard loop's job kinds, and the effects that job results have on a source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stoker.config.schema import Pipeline
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Books, Source
from stoker.corpus.schedule.outcome import Outcome, convicted
from stoker.corpus.staging.disk_full import LOOK_S, Place
from stoker.corpus.staging.finding import SET_INVALID, Finding
from stoker.kit.workers.pool import Activity, Job
from stoker.shards.format.pinned import filters_asked
from stokerd.sharding.effects import Dispute, Effect, StartOver, Write, event
from stokerd.sharding.facts.disks import Disk
from stokerd.sharding.state import BuildWork, SourceWork, State

Message = Mapping[str, Any]
# Without a message or CPU time. For writers to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0
W = TypeVar("W", bound=SourceWork)

HF_TOKENIZERS = "tokenizers"  # the engine that can build every file
FOOTER = -1  # in place of a row group: the footer was being read
RETRY_S = 1.0  # after a failure that is not the file's fault


def failed(state: State, job: Job[W], outcome: Outcome) -> Iterator[Effect]:
    """Yields the effects of an unsuccessful end, for any job on a source."""
    source = state.sources[job.subject]
    match outcome.kind:
        case "bad":
            state.records.convicted[source.path] = Finding.of(outcome.result)
        case "changed":
            yield from dispute(state, source)
        case "disk_full":
            state.retries.retry_in(source.path, LOOK_S)
            state.hot.look_soon()  # reports how much of the set is built already
            place = state.activities[job.kind].writes_to or "hot"
            state.pauses.disk_full(state, job.kind, place, source.path, outcome.reason)
        case "out_of_memory" | "over_memory":
            yield from try_again(state, job, source, outcome.reason, wait_s=RETRY_S)
        case "killed":  # by an operator or with the daemon's own stop: the delay grows if it repeats
            wait_s = max(RETRY_S, state.retries.failed(source.path))
            yield from try_again(state, job, source, outcome.reason, wait_s=wait_s)
        case "died":  # an unreadable mapped page kills too: a look shows whether the disk is gone
            state.hot.look_soon()
            blamed = yield from blame(state, job, source, outcome.reason)
            yield from try_again(state, job, blamed, outcome.reason)
        case _:
            if outcome.kind == "storage":  # its input may be gone: a look brings the record in line
                state.hot.look_soon()
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
    yield event(f"{job.kind}_failed", "warning", path=source.path, reason=reason, **about)


def blame(state: State, job: Job[W], source: Source, reason: str) -> Generator[Effect, None, Source]:
    """Counts a death against the source, which is returned; two deaths at one place convict it."""
    if isinstance(job.facts, BuildWork) and job.facts.is_encoding and uses_fast_engine(state, source):
        # The text may have crashed the engine: the reference engine shows whether the file is to blame.
        yield engine_refused(source, reason)
        return replace(source, engine=HF_TOKENIZERS)
    if job.facts.row_group is not None:
        source = replace(source, deaths=(*source.deaths, job.facts.row_group))
    guilty = convicted(source.deaths)
    if guilty is not None:
        group = None if guilty == FOOTER else guilty
        finding = Finding("worker_died", f"{reason}; twice at the same place", group)
        state.records.convicted[source.path] = finding
    return source


def uses_fast_engine(state: State, source: Source) -> bool:
    return HF_TOKENIZERS not in (state.pipeline.tokenizer.engine, source.engine)


def engine_refused(source: Source, reason: str) -> Effect:
    """Returns the event that a file is built with the reference engine."""
    return event("engine_refused", "warning", path=source.path, used=HF_TOKENIZERS, reason=reason)


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


def proven(
    state: State, source: Source, key: str, books: Mapping[str, Any], manifest_sha256: str
) -> Iterator[Effect]:
    """Records that the source's set is published on hot and proven."""
    state.retries.succeeded(source.path)
    state.hot.published.add(key[:KEY16])
    if state.sources.owner(source.sha256) not in (None, source.path):
        return  # one content has one set: the schedule makes this source a duplicate
    done = source.moved(
        "proven",
        key=key,
        books=Books.from_mapping(books),
        manifest_sha256=manifest_sha256,
        reason=None,
        deaths=(),
    )
    yield Write(done)
    state.discard_build(done)
    yield event(
        "source_proven",
        path=source.path,
        key=key[:KEY16],
        documents=books["documents"],
        tokens=books["tokens"],
        dropped=sum((books["dropped"] or {}).values()),  # unknown for imported sets
    )


def reject_set(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """Marks the set at the source's target for quarantine, which begins once no record claims the set."""
    state.records.convicted[source.path] = Finding(SET_INVALID, reason)
    yield event("shard_set_invalid", "error", path=source.path, reason=reason)
    if source.state in PUBLISHED:
        yield from set_gone(state, source, f"its shard set on hot is wrong: {reason}")


def set_gone(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """Records that the source's set left hot: its copy on warm remains, else the set is made again."""
    key = str(source.key)[:KEY16]
    state.hot.published.discard(key)
    if not source.on_warm:
        yield StartOver(source, reason, "warning")
        return
    yield Write(replace(source, evicted=True, evicting=False))
    reason = f"{reason}; its copy on warm is there"
    yield event("shard_set_lost", "warning", path=source.path, key=key, reason=reason)


def copy_lost(source: Source, reason: str) -> Iterator[Effect]:
    """Records that the copy of a set on hot is missing or wrong, so that the set is copied again."""
    yield Write(source.moved("proven", on_warm=False, evicting=False))
    about = {"path": source.path, "key": str(source.key)[:KEY16]}
    yield event("warm_copy_lost", "warning", **about, reason=f"{reason}; it is copied again")


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


def columns(pipeline: Pipeline) -> dict[str, str]:
    """Returns the columns read besides the text, each with its required type."""
    return filters_asked(pipeline).columns()


def marks(*disks: Disk | None) -> list[dict[str, Any]]:
    """Returns the owner records by which a worker recognizes these disks."""
    return [dict(disk.mark) for disk in disks if disk is not None and disk.mark]
