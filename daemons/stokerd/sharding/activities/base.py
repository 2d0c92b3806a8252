"""A kind of job of the stage-shard loop: how it runs and begins, and what ends of jobs make of a source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stoker.config.schema import Pipeline
from stoker.corpus.records.books import Books
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Outcome, convicted
from stoker.corpus.staging.disk_full import LOOK_S, Place
from stoker.corpus.staging.finding import SET_INVALID, Finding
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.pool import Job
from stoker.shards.format.pinned import filters_asked
from stokerd.sharding.effects import Dispute, Effect, StartOver, Write, event
from stokerd.sharding.facts.disks import Disk
from stokerd.sharding.state import BuildWork, SourceWork, State

Message = Mapping[str, Any]
# With neither a message nor CPU time; for what writes to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0
W = TypeVar("W", bound=SourceWork)

HF_TOKENIZERS = "tokenizers"  # the engine that every file can be built with
FOOTER = -1  # stands for the row group where the footer is what was being read
RETRY_S = 1.0  # where nothing is to blame


def failed(state: State, job: Job[W], outcome: Outcome) -> Iterator[Effect]:
    """The effects of an end that is no success, for any job on a source."""
    source = state.sources[job.subject]
    match outcome.kind:
        case "bad":
            state.records.convicted[source.path] = Finding.of(outcome.result)
        case "changed":
            yield from dispute(state, source)
        case "disk_full":
            state.retries.retry_in(source.path, LOOK_S)
            state.hot.look_soon()  # how much of it is built already
            place = state.activities[job.kind].writes_to or "hot"
            state.pauses.disk_full(state, job.kind, place, source.path, outcome.reason)
        case "out_of_memory" | "over_memory":
            yield from try_again(state, job, source, outcome.reason, wait_s=RETRY_S)
        case "killed":  # by hand, or with the daemon's own stop: longer each time, if it goes on
            wait_s = max(RETRY_S, state.retries.failed(source.path))
            yield from try_again(state, job, source, outcome.reason, wait_s=wait_s)
        case "died":  # a mapped page that could not be read kills as well: a look tells if its disk is away
            state.hot.look_soon()
            blamed = yield from blame(state, job, source, outcome.reason)
            yield from try_again(state, job, blamed, outcome.reason)
        case _:
            if outcome.kind == "storage":  # what it read may be gone: a look brings the record in line
                state.hot.look_soon()
            yield from try_again(state, job, source, outcome.reason)


def try_again(
    state: State, job: Job[W], source: Source, reason: str, *, wait_s: float | None = None
) -> Iterator[Effect]:
    """Wait longer each time, or `wait_s` seconds."""
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
    """Count a death against the source, which is returned; twice at one place convicts it."""
    if isinstance(job.facts, BuildWork) and job.facts.is_encoding and uses_fast_engine(state, source):
        # The engine may have died of the text: the reference shows whether the file is to blame.
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
    """The event that a file is built with the reference engine."""
    return event("engine_refused", "warning", path=source.path, used=HF_TOKENIZERS, reason=reason)


def dispute(state: State, source: Source) -> Iterator[Effect]:
    """The content is not what the receipt says: the download watchdog looks again, the source starts over."""
    yield from dispute_receipt(state, source, state.records.receipts.get(source.path))
    state.retries.failed(source.path)
    state.discard_build(source)
    yield StartOver(source, "its content is not what its receipt says", "warning")


def dispute_receipt(state: State, source: Source, receipt: Receipt | None) -> Iterator[Effect]:
    """Ask the download watchdog once; where a receipt of other content was written since, nobody has to."""
    disputed = state.records.disputed
    if receipt is not None and receipt.sha256 == source.sha256 and disputed.get(source.path) is not receipt:
        yield Dispute(source.path, source.sha256)
        disputed[source.path] = receipt


def proven(
    state: State, source: Source, key: str, books: Mapping[str, Any], manifest_sha256: str
) -> Iterator[Effect]:
    """The source's set is published on hot and proven."""
    state.retries.succeeded(source.path)
    state.hot.published.add(key[:KEY16])
    if state.sources.owner(source.sha256) not in (None, source.path):
        return  # one content has one set: the schedule makes a duplicate of this one
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
        dropped=sum((books["dropped"] or {}).values()),  # not known of what was imported
    )


def reject_set(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """The set at the source's target is wrong: it goes into quarantine, once no record claims it."""
    state.records.convicted[source.path] = Finding(SET_INVALID, reason)
    yield event("shard_set_invalid", "error", path=source.path, reason=reason)
    if source.state in PUBLISHED:
        yield from set_gone(state, source, f"its shard set on hot is wrong: {reason}")


def set_gone(state: State, source: Source, reason: str) -> Iterator[Effect]:
    """The source's set is not on hot any more: what is left is its copy on warm, else it is made again."""
    key = str(source.key)[:KEY16]
    state.hot.published.discard(key)
    if not source.on_warm:
        yield StartOver(source, reason, "warning")
        return
    yield Write(replace(source, evicted=True, evicting=False))
    reason = f"{reason}; its copy on warm is there"
    yield event("shard_set_lost", "warning", path=source.path, key=key, reason=reason)


def copy_lost(source: Source, reason: str) -> Iterator[Effect]:
    """The copy of a set that is on hot is not there or not right: it is made again."""
    yield Write(source.moved("proven", on_warm=False, evicting=False))
    about = {"path": source.path, "key": str(source.key)[:KEY16]}
    yield event("warm_copy_lost", "warning", **about, reason=f"{reason}; it is copied again")


@dataclass(frozen=True, kw_only=True)
class ShardActivity(Activity):
    """All there is to know of one kind of job.

    `due` are the subjects that it is to begin on now and no decision names. `begin` starts it on a subject,
    `on_message` takes what its worker says, `on_done` its result,
    `on_end` any other end, and all where there is no `on_done`. `writes_to` is what a full disk is.
    """

    begin: Callable[[State, str], Iterator[Effect]]
    on_done: Callable[[State, Job[Any], Message], Iterator[Effect]] | None = None
    on_end: Callable[[State, Job[Any], Outcome], Iterator[Effect]] = failed
    on_message: Callable[[State, Job[Any], Message], Iterator[Effect]] = lambda *_: iter(())
    due: Callable[[State], Iterable[str]] = lambda _state: ()
    writes_to: Place | None = None

    def start_due(self, state: State) -> Iterator[Effect]:
        """Begin on what is due, unless that is worked on, or waits after a failure."""
        for subject in self.due(state):
            if subject not in state.pool and state.retries.allows(subject):
                yield from self.begin(state, subject)

    def end(self, state: State, job: Job[Any], outcome: Outcome) -> Iterator[Effect]:
        """What the end of a job makes true; it may have taken room, or given some."""
        state.progress.ends[self.kind][outcome.kind] += 1
        for disk in state.disks:
            disk.measure_soon()
        if outcome.kind in ("done", "recycled"):
            state.pauses.disk_works(self.writes_to)
        if outcome.kind == "done" and self.on_done is not None:
            return self.on_done(state, job, outcome.result)
        return self.on_end(state, job, outcome)


def columns(pipeline: Pipeline) -> dict[str, str]:
    """The columns that are read beside the text, and what each must hold."""
    return filters_asked(pipeline).columns()


def marks(*disks: Disk | None) -> list[dict[str, Any]]:
    """By what a worker knows that these disks are the ones it is to work on."""
    return [dict(disk.mark) for disk in disks if disk is not None and disk.mark]
