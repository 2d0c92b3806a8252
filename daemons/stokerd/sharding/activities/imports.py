"""Import: tokens of others on their way in; asked for by request, on record before and after the copy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import PUBLISHED
from stoker.corpus.schedule.outcome import Outcome
from stoker.kit.workers.pool import Job
from stoker.shards.exchange import import_claim
from stoker.store.requests import Request
from stokerd.sharding.activities.base import Message, ShardActivity
from stokerd.sharding.activities.transitions import reject_set
from stokerd.sharding.effects import Alert, AlertOver, Answer, Begin, Effect, Send, Write, event
from stokerd.sharding.state import TRIES_ONCE, State, Work

AT_ONCE = 2  # each reads all it can get
LOST_EVERY_S = 5.0
LOST = "its shard set is nowhere in this build any more; import it again"


@dataclass(kw_only=True)
class ImportWork(Work):
    """What was asked for; `path` and `form` are known once the worker has seen the content."""

    request: Request
    path: str = ""
    form: str = ""


def act(state: State) -> Iterator[Effect]:
    """Start what may be started, one import of a place at a time; see to sets that are gone."""
    requests = state.records.asked(import_claim.IMPORT)
    for request in requests:
        if (reason := import_claim.misasked(request.args)) is not None:
            yield Answer(request, {"refused": reason})
            continue
        is_free = _subject(request) not in state.pool and len(state.doing("import")) < AT_ONCE
        is_ready = state.records.pinning.pin is not None and state.hot.is_known
        if is_free and is_ready and state.retries.allows(_subject(request)):
            yield from state.start("import", request.id)
    if not requests and state.sources.imported:
        yield from _give_up_lost(state)


def begin(state: State, request_id: str) -> Iterator[Effect]:
    """Import what the request names."""
    request = next(one for one in state.records.requests if one.id == request_id)
    pin = state.records.pinning.pin
    assert pin is not None  # nothing is imported before
    task = import_claim.task_of(state.pipeline, pin, request.args)
    yield Begin(IMPORT, _subject(request), task, ImportWork(request=request))


def on_message(state: State, job: Job[ImportWork], message: Message) -> Iterator[Effect]:
    """The worker knows what there is: it goes on record, so that a set of it is never without a record."""
    if message["kind"] != "content":
        return
    listing = state.records.listing
    made = import_claim.claim(
        state.sources,
        frozenset(() if listing is None else listing.paths),
        dataset=state.records.dataset,
        name=Path(str(job.facts.request.args["place"])).name,
        size=message["size"],
        sha256=message["sha256"],
    )
    job.facts.path, job.facts.form = made.source.path, str(message["form"])
    if not made.twin and state.sources.get(made.source.path) != made.source:
        yield Write(made.source)
    yield Send(job.subject, {"path": None if made.twin else made.source.path})


def on_end(state: State, job: Job[ImportWork], outcome: Outcome) -> Iterator[Effect]:
    """Record what was published, and answer the request; what failed is tried again."""
    request, result = job.facts.request, outcome.result
    source = state.sources.get(job.facts.path)
    state.hot.measure_soon()
    match result.get("status"):
        case "published" | "existed" if source is not None:
            state.hot.published.add(str(result["key"])[:KEY16])
            is_new = source.state not in PUBLISHED
            source = import_claim.proven(source, result)
            yield Write(source)
            books = result["books"]
            about = {"path": source.path, "key": str(source.key)[:KEY16], "form": job.facts.form}
            yield event("set_imported", **about, tokens=books["tokens"], documents=books["documents"])
            state.retries.succeeded(job.subject)
            yield AlertOver("import_failed")
            yield Answer(request, import_claim.outcome_of(source, new=is_new, notes=result["notes"]))
        case "on_record" if source is not None:
            yield Answer(request, import_claim.outcome_of(source, new=False))
        case "refused":
            place, reason = str(request.args["place"]), str(result["reason"])
            yield event("import_refused", "warning", place=place, reason=reason)
            yield Answer(request, {"refused": reason})
        case "target_invalid" if source is not None:
            yield from reject_set(state, source, str(result["reason"]))
            state.retries.failed(job.subject)
        case _:
            yield from _failed(state, job, outcome)


def _failed(state: State, job: Job[ImportWork], outcome: Outcome) -> Iterator[Effect]:
    request, wait_s = job.facts.request, round(state.retries.failed(job.subject), 1)
    about = {"place": str(request.args["place"]), "reason": outcome.reason, "retry_in_s": wait_s}
    yield Alert("import_failed", fields=about)
    waits = outcome.kind == "disk_full" and not state.context.once  # room comes back
    if state.retries.failures(job.subject) >= TRIES_ONCE and not waits:
        state.retries.succeeded(job.subject)
        yield Answer(request, {"failed": outcome.reason})


def _give_up_lost(state: State) -> Iterator[Effect]:
    """An imported set cannot be built again: one that is nowhere is passed over until it comes back."""
    key_of, now = state.records.pinning.key_of(), time.monotonic()
    is_unsure = state.warm is not None and not state.warm.is_known
    if key_of is None or is_unsure or not state.hot.is_known or not state.retries.allows(LOST):
        return
    state.retries.not_before[LOST] = now + LOST_EVERY_S
    warm = frozenset() if state.warm is None else state.warm.published
    for source in state.sources.in_state("seen"):
        key = key_of(source.sha256)[:KEY16] if source.imported else ""
        is_used = source.path in state.pool or source.path in state.records.invalid_sets
        if source.imported and not is_used and key not in state.hot.published and key not in warm:
            yield Write(source.moved("quarantined", reason=LOST))
            yield event("import_lost", "error", path=source.path, reason=LOST)


def _subject(request: Request) -> str:
    """No source's path begins with a slash."""
    return f"/import {request.args['place']}"


IMPORT = ShardActivity(
    kind="import",
    module="stoker.shards.exchange.import_worker",
    keep_open=True,
    begin=begin,
    on_message=on_message,
    on_end=on_end,
)
