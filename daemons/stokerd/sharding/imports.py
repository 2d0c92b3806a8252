"""Tokens of others on their way in: asked for by request, copied by a worker, on record before and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.schedule.outcome import judge
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.shards.exchange.import_claim import IMPORT, claim, misasked, outcome_of, proven, task_of
from stoker.store.requests import Request
from stokerd.common.alerts import Told
from stokerd.sharding.disks import TRIES_ONCE
from stokerd.sharding.tasks import ACTIVITIES
from stokerd.sharding.view import ShardView

IMPORTS = 2  # at once: each reads all it can get
LOST_EVERY_S = 5.0
LOST = "its shard set is nowhere in this build any more; import it again"


class ImportDesk:
    """What is asked for stays a request until it is done: a daemon that starts begins it anew."""

    def __init__(self, context: DaemonContext, view: ShardView, told: Told) -> None:
        self._context, self._events, self._told = context, context.events, told
        self._view, self._crew, self._patience = view, view.crew, view.patience
        self._pinning, self._book = view.pinning, view.book
        self._asked: dict[str, Request] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._looked_at = -LOST_EVERY_S

    @property
    def verbs(self) -> Mapping[str, Callable[[Request], Mapping[str, Any] | None]]:
        """What it can be asked for."""
        return {IMPORT: self.consider}

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """The answer to a request, None while it is being acted on."""
        answer = self._answers.pop(request.id, None)
        if answer is not None:
            self._asked.pop(request.id, None)
            return answer
        if (reason := misasked(request.args)) is not None:
            return {"refused": reason}
        self._asked[request.id] = request
        return None

    def begin(self) -> None:
        """Start what may be started, one import of a place at a time; see to sets that are gone."""
        if self._pinning.pin is None or not self._view.hot.known:
            return
        for request in list(self._asked.values()):
            if request.id in self._answers:
                continue
            subject = _subject(request)
            busy = sum(1 for each in self._crew.busy.values() if each == "import")
            if subject in self._crew or busy >= IMPORTS or not self._patience.allows(subject):
                continue
            task = task_of(self._context.pipeline, self._pinning.pin, request.args)
            job = self._crew.start(ACTIVITIES["import"], subject, task, {})
            job.facts["request"] = request.id
        if not self._asked and time.monotonic() >= self._looked_at + LOST_EVERY_S:
            self._looked_at = time.monotonic()
            self._give_up_lost()

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """The worker knows what there is: it goes on record, so that a set of it is never nobody's."""
        if message["kind"] != "content":
            return
        listing = self._view.listing
        made = claim(
            self._book.sources,
            frozenset(() if listing is None else listing.paths),
            dataset=self._book.dataset,
            name=Path(str(self._asked[job.facts["request"]].args["place"])).name,
            size=message["size"],
            sha256=message["sha256"],
        )
        job.facts["path"], job.facts["form"] = made.source.path, message["form"]
        if not made.twin and self._book.sources.get(made.source.path) != made.source:
            self._book.write(made.source)
        job.worker.send({"path": None if made.twin else made.source.path})

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """Record what was published, and have the request answered; what failed is tried again."""
        request = self._asked[job.facts["request"]]
        verdict = judge(ended)
        result = verdict.fields or {}
        source = self._book.sources.get(str(job.facts.get("path")))
        match result.get("status"):
            case "published" | "existed" if source is not None:
                self._published(source, job, result)
            case "on_record" if source is not None:
                self._answer(request, outcome_of(source, new=False))
            case "refused":
                place, reason = str(request.args["place"]), str(result["reason"])
                self._events.record("import_refused", level="warning", place=place, reason=reason)
                self._answer(request, {"refused": reason})
            case "target_invalid" if source is not None:
                self._view.outcomes.set_invalid(source, str(result["reason"]))
                self._patience.failed(job.subject)
            case _:
                self._failed(job, request, verdict.kind, verdict.reason)

    def _published(self, source: Source, job: Job[Any], result: Mapping[str, Any]) -> None:
        self._view.hot.published.add(str(result["key"])[:16])
        new = source.state not in PUBLISHED
        source = proven(source, result)
        self._book.write(source)
        self._events.record(
            "set_imported",
            path=source.path,
            key=str(source.key)[:16],
            form=job.facts["form"],
            tokens=result["books"]["tokens"],
            documents=result["books"]["documents"],
        )
        self._patience.succeeded(job.subject)
        self._told.over("import_failed")
        request = self._asked[job.facts["request"]]
        self._answer(request, outcome_of(source, new=new, notes=result["notes"]))

    def _failed(self, job: Job[Any], request: Request, kind: str, reason: str) -> None:
        wait_s = self._patience.failed(job.subject)
        place = str(request.args["place"])
        tries = self._patience.failures(job.subject)
        patient = kind == "disk_full" and not self._context.once  # room comes back, and we go on by ourselves
        self._told.trouble("import_failed", place=place, reason=reason, retry_in_s=round(wait_s, 1))
        if tries >= TRIES_ONCE and not patient:
            self._patience.succeeded(job.subject)
            self._answer(request, {"failed": reason})

    def _answer(self, request: Request, outcome: Mapping[str, Any]) -> None:
        self._answers[request.id] = outcome

    def _give_up_lost(self) -> None:
        """Nobody can build an imported set again: one that is nowhere is passed over until it comes back."""
        for source in list(self._lost()):
            self._book.write(source.moved("quarantined", reason=LOST))
            self._events.record("import_lost", level="error", path=source.path, reason=LOST)

    def _lost(self) -> Iterator[Source]:
        key_of = self._pinning.key_of()
        if key_of is None or (self._view.warm.configured and not self._view.warm.known):
            return
        for source in self._book.sources.in_state("seen"):
            path = source.path
            if not source.imported or path in self._crew.busy or path in self._view.outcomes.invalid_sets:
                continue
            key = key_of(source.sha256)[:16]
            if key not in self._view.hot.published and key not in self._view.warm.published:
                yield source


def _subject(request: Request) -> str:
    """What the crew calls it: no source's path begins with a slash."""
    return f"/import {request.args['place']}"
