"""What ends of jobs make of a source, whatever the kind of job: shared by the activities."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from stoker.corpus.records.books import Books
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Outcome, convicted
from stoker.corpus.staging.disk_full import LOOK_S
from stoker.corpus.staging.finding import SET_INVALID, Finding
from stoker.kit.workers.pool import Job
from stokerd.sharding.effects import Dispute, Effect, StartOver, Write, event
from stokerd.sharding.state import BuildWork, SourceWork, State

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
