"""Recheck: reads a quarantined file again, on request and periodically; one file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.corpus.quarantine.directory import Kept
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.finding import Finding
from stoker.kit.workers.pool import Job
from stoker.shards.audit.recheck import BY_ITSELF, FORCED, RELEASE, look_task, released
from stoker.store.record import utc_now
from stokerd.sharding.activities.base import ShardActivity, dispute, marks
from stokerd.sharding.effects import Answer, Begin, Effect, MarkFinding, Write, event
from stokerd.sharding.facts.quarantine import GONE, RECHECK, mark_released, next_look
from stokerd.sharding.state import State, Work

# An end without a result that speaks of the file keeps its conviction; other ends speak of the machine.
STATUS = {"bad": "bad", "changed": "changed", "died": "bad", "over_memory": "bad"}
VERDICTS = ("good", "bad", "changed", "gone", "unreadable")


@dataclass(kw_only=True)
class RecheckWork(Work):
    """The entry under recheck, as of the start; `is_forced`: released without reading its file."""

    kept: Kept
    source: Source
    is_forced: bool


def begin(state: State, _subject: str) -> Iterator[Effect]:
    """Rechecks the next file that is due or requested."""
    if (found := next_look(state)) is not None:
        kept, is_forced = found
        source, receipt = state.sources[kept.path], state.records.receipts.get(kept.path)
        task = look_task(state.pipeline, kept, source, receipt, decode=not is_forced)
        work = RecheckWork(kept=kept, source=source, is_forced=is_forced)
        yield Begin(REVALIDATE, RECHECK, {**task, "disks": marks(state.hot)}, work)
        state.records.quarantine.looking_at = kept.path


def on_end(state: State, job: Job[RecheckWork], outcome: Outcome) -> Iterator[Effect]:
    """Applies the verdict of a recheck and answers its requests."""
    quarantine, work = state.records.quarantine, job.facts
    quarantine.read_soon()
    quarantine.looking_at = None
    kept, source = work.kept, state.sources.get(work.kept.path)
    if source is None or source != work.source:
        return  # the source started over meanwhile: the look read other content
    verdict = STATUS.get(outcome.kind, outcome.result.get("status", ""))
    state.progress.looks[verdict if verdict in VERDICTS else "unreadable"] += 1
    if verdict in ("good", "bad", "gone"):
        state.retries.succeeded(f"{RECHECK} {kept.name}")
    match verdict:
        case "good":
            yield from _release(state, kept, source, FORCED if work.is_forced else BY_ITSELF)
        case "bad" | "gone":
            words = str(Finding.of(outcome.result)) if outcome.result else f"{outcome.kind}: {outcome.reason}"
            words = GONE if verdict == "gone" else words
            times = int(kept.body.get("revalidations") or 0) + 1
            yield MarkFinding(kept.name, {"revalidated": utc_now(), "revalidations": times})
            about = {"path": kept.path, "folder": kept.name, "reason": words}
            yield event("quarantine_revalidated", **about, times=times)
            yield from _refuse(state, kept, words, "bad")
        case "changed":
            words = "its file differs from what its receipt says: it is hashed again"
            yield from _refuse(state, kept, words, "")
            yield from dispute(state, source)
        case _:
            wait_s = round(state.retries.failed(f"{RECHECK} {kept.name}"), 1)
            about = {"path": kept.path, "reason": outcome.reason}
            yield event("revalidate_failed", "warning", **about, retry_in_s=wait_s)
            yield from _refuse(state, kept, f"it cannot be read now: {outcome.reason}", "unreadable")


def _release(state: State, kept: Kept, source: Source, why: str) -> Iterator[Effect]:
    """Starts the source over."""
    state.records.convicted.pop(source.path, None)
    state.retries.succeeded(source.path)
    yield Write(released(source, why))
    yield from mark_released(kept, why)
    yield from _answer(state, kept, "good", {"released": kept.path, "why": why})


def _refuse(state: State, kept: Kept, words: str, verdict: str) -> Iterator[Effect]:
    answer = {"refused": words, "finding": verdict == "bad", "again": verdict == "unreadable"}
    yield from _answer(state, kept, verdict, answer)


def _answer(state: State, kept: Kept, verdict: str, answer: Mapping[str, Any]) -> Iterator[Effect]:
    """Answers the requests to recheck this entry, and counts the verdict in every round."""
    for request in state.records.asked(RELEASE):
        if request.args.get("name") == kept.name:
            yield Answer(request, answer)
    for one in state.records.quarantine.rounds.values():
        if kept.name in one.todo:
            one.todo.discard(kept.name)
            one.ends[verdict] += 1
            one.released += [kept.path] if verdict == "good" else []


REVALIDATE = ShardActivity(
    kind="revalidate",
    module="stoker.shards.audit.recheck_worker",
    is_memory_bound=True,  # as a builder: a file that needs more memory could not be built either
    begin=begin,
    due=lambda _state: (RECHECK,),
    on_end=on_end,
)
