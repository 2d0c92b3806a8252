"""Quarantine: its budget, requests about it, and rechecks, each of which reads one quarantined file again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from stoker.corpus.quarantine.directory import DROP, RELEASE, QuarantineEntry, drops, due, findings, refusal
from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.workers.pool import Job
from stoker.shards.audit.recheck import GONE, MODULE, recheck_task
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import utc_now
from stoker.store.requests import Request, file_request
from stokerd.sharding.activities.base import ShardActivity, dispute
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.disk import marks
from stokerd.sharding.effects import Answer, Begin, DropFinding, Effect, MarkFinding, StartOver, Write, event
from stokerd.sharding.work import Work

SUBJECT = "/revalidate"  # of the job; never a source's path
# An end without a result that speaks of the file keeps its conviction; other ends speak of the machine.
STATUS = {"bad": "bad", "changed": "changed", "died": "bad", "over_memory": "bad"}
BUILT = {*PUBLISHED, "duplicate"}
VERDICTS = ("good", "bad", "changed", "gone", "unreadable")


def act(dataset: DatasetState) -> Iterator[Effect]:
    """Answers requests, restarts sources without a finding, and enforces the budget."""
    quarantine = dataset.machine.quarantine
    quarantine.read()
    yield from _restart_without_finding(dataset)
    yield from _release_replaced(dataset)
    for request in dataset.machine.inbox.asked(RELEASE, DROP):
        if request.verb == DROP:
            yield from _drop(dataset, request)
        elif (answer := _release(dataset, request)) is not None:
            yield Answer(request, answer)
    quarantine.read()  # without the entries just dropped
    budget = dataset.pipeline.quarantine
    busy = {*dataset.doing("quarantine"), *_under_recheck(dataset)}
    limits = {"keep_files": budget.keep_files, "keep_bytes": budget.keep_bytes}
    for kept, why in list(drops(quarantine.kept, dataset.sources, **limits, busy=busy)):
        yield DropFinding(kept, why)


def _restart_without_finding(dataset: DatasetState) -> Iterator[Effect]:
    """Starts over sources whose finding an operator removed: the loop judges them again."""
    known = findings(dataset.machine.quarantine.kept)
    for source in dataset.sources.in_state("quarantined"):
        if source.has_file and (source.path, source.sha256) not in known:
            yield StartOver(source, "what was found against it is gone from quarantine", "warning")


def _release_replaced(dataset: DatasetState) -> Iterator[Effect]:
    """Ends findings against a content that its file no longer has, once the new content is built."""
    for kept in findings(dataset.machine.quarantine.kept).values():
        source = dataset.sources.get(kept.path)
        if source is not None and source.sha256 != kept.sha256 and source.state in BUILT:
            yield from mark_released(kept, "its file has other content now, which is built")


def mark_released(kept: QuarantineEntry, why: str) -> Iterator[Effect]:
    """Records that a finding's source was released for another try."""
    yield event("source_released_from_quarantine", path=kept.path, folder=kept.name, why=why)
    yield MarkFinding(kept.name, {"released": {"time": utc_now(), "why": why}})


# Requests


def _release(dataset: DatasetState, request: Request) -> Mapping[str, Any] | None:
    """Returns the answer to a release request; None while it needs a recheck first."""
    kept = dataset.machine.quarantine.named(request)
    if kept is None:
        return {"refused": f"nothing in quarantine is called {request.args.get('name')}"}
    if kept.released is not None:
        return {"released": kept.path, "why": kept.released.get("why"), "already": True}
    source = dataset.sources.get(kept.path)
    if (no := refusal(kept, source)) is not None:
        return {"refused": no}
    if (request.condition or {}).get("sha256", kept.sha256) != kept.sha256:
        return {"refused": f"{kept.path} is not the file that was meant: its sha256 is {kept.sha256[:16]}"}
    if source is not None and source.never_came:
        file_request(dataset.context.layout, DOWNLOAD_WATCHDOG, "fetch", {"path": kept.path, "sha256": None})
        return {"fetching": kept.path, "why": "the download watchdog is asked to fetch it; then it is built"}
    return None


def _drop(dataset: DatasetState, request: Request) -> Iterator[Effect]:
    quarantine = dataset.machine.quarantine
    name, kept = str(request.args.get("name")), quarantine.named(request)
    if kept is None:
        yield Answer(request, {"dropped": name, "bytes": 0})
    elif kept.kind == "checkpoint":
        yield Answer(request, {"refused": "quarantined checkpoints are the train supervisor's to drop"})
    elif kept.path not in _under_recheck(dataset):
        reason_too = request.args.get("reason_too") is True
        if kept.things or reason_too:
            yield DropFinding(kept, f"asked for by {request.by}", reason_too)
        size = kept.bytes or int((kept.dropped or {}).get("bytes", 0))
        yield Answer(request, {"dropped": name, "bytes": size})


# Recheck


def next_look(dataset: DatasetState) -> tuple[QuarantineEntry, bool] | None:
    """Returns the entry to recheck now, and whether to release it without reading its file."""
    quarantine = dataset.machine.quarantine
    if SUBJECT in dataset.pool or not dataset.hot.is_known:
        return None
    for request in dataset.machine.inbox.asked(RELEASE):
        if (kept := quarantine.named(request)) is not None and _release(dataset, request) is None:
            return kept, request.args.get("force") is True
    every, sources = dataset.pipeline.quarantine.revalidate, dataset.sources.in_state("quarantined")
    waiting = due(quarantine.kept, sources, now=time.time(), every=every)
    return next(((kept, False) for kept in waiting if dataset.retries.allows(f"{SUBJECT} {kept.name}")), None)


@dataclass(kw_only=True)
class RecheckWork(Work):
    """The entry under recheck, as of the start; `is_forced`: released without reading its file."""

    kept: QuarantineEntry
    source: Source
    is_forced: bool


def _under_recheck(dataset: DatasetState) -> list[str]:
    """Returns the path whose quarantined file is being read."""
    jobs = (cast(Job[RecheckWork], job) for job in dataset.pool.jobs if job.kind == RECHECK.kind)
    return [job.facts.kept.path for job in jobs]


def _begin(dataset: DatasetState, _subject: str) -> Iterator[Effect]:
    """Rechecks the next file that is due or requested."""
    if (found := next_look(dataset)) is not None:
        kept, is_forced = found
        source, receipt = dataset.sources[kept.path], dataset.receipts.get(kept.path)
        task = {
            **recheck_task(dataset.pipeline, kept, source, receipt),
            "target": str(dataset.pipeline.hot_layout.parquet / parquet_name(source)),
            "decode": not is_forced,
            "disks": marks(dataset.hot),
        }
        work = RecheckWork(kept=kept, source=source, is_forced=is_forced)
        yield Begin(dataset.name, RECHECK, SUBJECT, task, work)


def _on_end(dataset: DatasetState, job: Job[RecheckWork], outcome: Outcome) -> Iterator[Effect]:
    """Applies the verdict of a recheck and answers its requests."""
    work = job.facts
    dataset.machine.quarantine.read_soon()
    kept, source = work.kept, dataset.sources.get(work.kept.path)
    if source is None or source != work.source:
        return  # the source started over meanwhile: the look read other content
    verdict = STATUS.get(outcome.kind, outcome.result.get("status", ""))
    dataset.progress.looks[verdict if verdict in VERDICTS else "unreadable"] += 1
    if verdict in ("good", "bad", "gone"):
        dataset.retries.succeeded(f"{SUBJECT} {kept.name}")
    match verdict:
        case "good":
            why = "by hand, without a check" if work.is_forced else "it decodes and hashes well now"
            reason = f"released from quarantine: {why}"
            dataset.convicted.pop(source.path, None)
            dataset.retries.succeeded(source.path)
            yield Write(source.renewed(size=source.size, sha256=source.sha256, reason=reason))
            yield from mark_released(kept, why)
            yield from _answer(dataset, kept, {"released": kept.path, "why": why})
        case "bad" | "gone":
            words = str(Finding.of(outcome.result)) if outcome.result else f"{outcome.kind}: {outcome.reason}"
            words = GONE if verdict == "gone" else words
            times = int(kept.body.get("revalidations") or 0) + 1
            yield MarkFinding(kept.name, {"revalidated": utc_now(), "revalidations": times})
            about = {"path": kept.path, "folder": kept.name, "reason": words}
            yield event("quarantine_revalidated", **about, times=times)
            yield from _answer(dataset, kept, {"refused": words, "finding": True, "again": False})
        case "changed":
            words = "its file differs from what its receipt says: it is hashed again"
            yield from _answer(dataset, kept, {"refused": words, "finding": False, "again": False})
            yield from dispute(dataset, source)
        case _:
            wait_s = round(dataset.retries.failed(f"{SUBJECT} {kept.name}"), 1)
            about = {"path": kept.path, "reason": outcome.reason}
            yield event("revalidate_failed", **about, retry_in_s=wait_s)
            words = f"it cannot be read now: {outcome.reason}"
            yield from _answer(dataset, kept, {"refused": words, "finding": False, "again": True})


def _answer(dataset: DatasetState, kept: QuarantineEntry, answer: Mapping[str, Any]) -> Iterator[Effect]:
    """Answers the requests to release this entry."""
    for request in dataset.machine.inbox.asked(RELEASE):
        if request.args.get("name") == kept.name:
            yield Answer(request, answer)


RECHECK = ShardActivity(
    kind="revalidate",
    module=MODULE,
    is_memory_bound=True,  # as a builder: a file that needs more memory could not be built either
    begin=_begin,
    due=lambda _dataset: (SUBJECT,),
    on_end=_on_end,
)
