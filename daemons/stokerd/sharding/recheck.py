"""Another try for quarantined sources: when asked to, and by the clock; one is looked at at a time."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.corpus.quarantine.directory import Kept, mark
from stoker.corpus.quarantine.move import open_folder
from stoker.corpus.quarantine.rules import due, homeless, refusal
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.outcome import judge
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.shards.audit.recheck import (
    BY_ITSELF,
    FORCED,
    began_anew,
    fetch_again,
    look_task,
    released,
    words_of,
)
from stoker.store.names import record_name, utc_now
from stoker.store.requests import Request
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES

LOOKING = "/revalidate"  # never a source's path
_THINK_EVERY_S = 5.0
# What ends without a result tells of the file, which was convicted before; the rest tells of the machine.
_STATUS = {"bad": "bad", "changed": "changed", "died": "bad", "over_memory": "bad"}
_GONE = "its file is not there any more, and no good copy of it was kept"


@dataclass
class _Round:
    """Everything is to be looked at that was not since; what came of it."""

    asked_at: float
    begun: bool = False
    done: set[str] = field(default_factory=set)
    released: list[str] = field(default_factory=list)
    bad: int = 0
    unreadable: int = 0


class ReleaseDesk:
    """`looking_at` is the path of the source being looked at; `changed` is called when a reason was."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        patience: Retries,
        book: SourceBook,
        outcomes: SourceOutcomes,
        hot: HotYard,
        changed: Callable[[], None],
    ) -> None:
        self._layout = context.layout
        self._pipeline, self._events = context.pipeline, context.events
        self._directory, self._every = context.layout.quarantine, context.pipeline.quarantine.revalidate
        self._crew, self._patience, self._book = crew, patience, book
        self._outcomes, self._hot, self._changed = outcomes, hot, changed
        self._asked: dict[str, tuple[str, bool]] = {}  # folder's name and whether by force, by request
        self._rounds: dict[str, _Round] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._shelf: tuple[Kept, ...] = ()  # as it was last seen
        self._think_due = 0.0
        metrics = context.metrics
        self._looks = metrics.counter("quarantine_looks_total", "Quarantined files seen again.", ("verdict",))
        for verdict in ("good", "bad", "changed", "gone", "unreadable"):
            self._looks.labels(verdict)

    @property
    def looking_at(self) -> str | None:
        return str(self._crew[LOOKING].facts["path"]) if LOOKING in self._crew else None

    # What is asked

    def consider(self, request: Request, kept: Kept | None) -> Mapping[str, Any] | None:
        """Answer a wish for release at once where no look is needed for it; else None until there was one."""
        if request.id in self._answers:
            return self._answers.pop(request.id)
        if request.id in self._asked:
            return None
        if kept is None:
            return {"refused": f"nothing in quarantine is called {request.args.get('name')}"}
        if kept.released is not None:
            return {"released": kept.path, "why": kept.released.get("why"), "already": True}
        source = self._book.sources.get(kept.path)
        no = refusal(kept, source)
        wanted = (request.condition or {}).get("sha256", kept.sha256)
        if no is None and wanted != kept.sha256:
            no = f"{kept.path} is not the file that was meant: its sha256 is {kept.sha256[:16]}"
        if no is not None:
            return {"refused": no}
        if source is not None and source.never_came:
            return fetch_again(self._layout, kept.path)
        self._asked[request.id] = kept.name, request.args.get("force") is True
        return None

    def consider_round(self, request: Request) -> Mapping[str, Any] | None:
        """Everything quarantined is looked at again; the answer says what came of it."""
        round_ = self._rounds.setdefault(request.id, _Round(_filed_at(request.id)))
        if not round_.begun or LOOKING in self._crew or self._left(round_):
            return None
        del self._rounds[request.id]
        return {"released": round_.released, "bad": round_.bad, "unreadable": round_.unreadable}

    # A turn

    def tell(self, shelf: tuple[Kept, ...]) -> None:
        """An event for each release, whoever made it; also of those a crash or a command left untold."""
        for kept in shelf:
            if (why := began_anew(self._book.sources.get(kept.path), kept)) is not None:
                self._mark(kept, released={"time": utc_now(), "why": why, "told": False})
            elif kept.released is not None and not kept.released.get("told"):
                why = str(kept.released.get("why"))
                self._events.record(
                    "source_released_from_quarantine", path=kept.path, folder=kept.name, why=why
                )
                self._mark(kept, released={**kept.released, "told": True})

    def lost(self, shelf: tuple[Kept, ...]) -> list[Source]:
        """The quarantined sources whose finding somebody took away."""
        return homeless(self._quarantined(), shelf)

    def find(self, lost: list[Source]) -> None:
        """Write their findings anew, or they would never be looked at again."""
        for source in lost:
            detail = "what was kept of it, and why, is gone from quarantine"
            finding = {"reason": source.reason, "column": source.column, "detail": detail}
            name = record_name(source.dataset, source.path)
            body = {"path": source.path, "sha256": source.sha256, "unseen": True, **finding}
            open_folder(self._directory, "parquet", name, body)
            self._changed()

    def act(self, shelf: tuple[Kept, ...], receipts: Mapping[str, Receipt]) -> None:
        """Have the next one looked at."""
        self._shelf = shelf
        for round_ in self._rounds.values():
            round_.begun = True
        if LOOKING in self._crew or not self._hot.known:
            return
        by_name = {kept.name: kept for kept in shelf}
        for asked, (name, force) in list(self._asked.items()):
            kept = by_name.get(name)
            source = None if kept is None else self._book.sources.get(kept.path)
            no = _GONE if kept is None else refusal(kept, source)
            if kept is not None and source is not None and no is None:
                self._start(kept, source, receipts, force=force)
                return
            self._answer(asked, {"refused": no})
        now = time.monotonic()
        if self._rounds or now >= self._think_due:
            self._think_due = now + _THINK_EVERY_S
            self._go_on(shelf, receipts)

    def _go_on(self, shelf: tuple[Kept, ...], receipts: Mapping[str, Receipt]) -> None:
        sources = self._quarantined()
        waiting = [
            kept
            for kept in due(shelf, sources, now=time.time(), every=self._every)
            if self._patience.allows(f"{LOOKING} {kept.name}")
        ]
        waiting = [kept for round_ in self._rounds.values() for kept in self._left(round_)] + waiting
        if waiting:
            self._start(waiting[0], sources[waiting[0].path], receipts, force=False)

    def _quarantined(self) -> dict[str, Source]:
        """What can be looked at again; an imported source has no file: it is imported again, or not."""
        quarantined = self._book.sources.in_state("quarantined")
        return {source.path: source for source in quarantined if not source.imported}

    def _left(self, round_: _Round) -> list[Kept]:
        ones = due(
            self._shelf or (),
            self._quarantined(),
            now=time.time(),
            every=None,
            asked_at=round_.asked_at + 1.0,
        )
        return [kept for kept in ones if kept.name not in round_.done]

    def _start(self, kept: Kept, source: Source, receipts: Mapping[str, Receipt], *, force: bool) -> None:
        receipt = receipts.get(source.path)
        task = look_task(self._pipeline, kept, source, receipt, decode=not force, to_hot=True)
        task["disks"] = [dict(self._hot.mark)] if self._hot.mark else []
        job = self._crew.start(ACTIVITIES["revalidate"], LOOKING, task, {})
        job.facts |= {"kept": kept, "path": kept.path, "source": source, "force": force}

    # What was seen

    def ended(self, job: Job[Any], ended: WorkerExit, receipts: Mapping[str, Receipt]) -> None:
        """Act on what a look found, and answer those who asked for it."""
        kept: Kept = job.facts["kept"]
        source = self._book.sources.get(kept.path)
        if source is None or source != job.facts["source"]:
            return  # renewed meanwhile: the look was at something else
        verdict = judge(ended)
        result = verdict.fields or {}
        status = _STATUS.get(verdict.kind, result.get("status"))
        self._think_due = 0.0
        match status:
            case "good":
                self._release(kept, source, FORCED if job.facts["force"] else BY_ITSELF)
            case "bad":
                words = words_of(result) if result else f"{verdict.kind}: {verdict.reason}"
                self._still_bad(kept, "bad", words)
            case "changed":
                self._looks.labels("changed").inc()
                self._note_down(kept, "its file differs from what its receipt says: it is hashed again", None)
                self._outcomes.dispute(source, receipts.get(kept.path))
            case "gone":
                self._still_bad(kept, "gone", _GONE)
            case _:
                self._unreadable(kept, verdict.reason)

    def _release(self, kept: Kept, source: Source, why: str) -> None:
        self._looks.labels("good").inc()
        self._outcomes.convicted.pop(source.path, None)
        self._patience.succeeded(source.path)
        self._patience.succeeded(f"{LOOKING} {kept.name}")
        self._book.write(released(source, why))
        self._mark(kept, released={"time": utc_now(), "why": why, "told": False})
        for asked in self._asking(kept):
            self._answer(asked, {"released": kept.path, "why": why})
        for round_ in self._rounds.values():
            round_.done.add(kept.name)
            round_.released.append(kept.path)

    def _still_bad(self, kept: Kept, verdict: str, words: str) -> None:
        self._looks.labels(verdict).inc()
        self._patience.succeeded(f"{LOOKING} {kept.name}")
        times = int(kept.body.get("revalidations") or 0) + 1
        self._mark(kept, revalidated=utc_now(), revalidations=times)
        self._events.record(
            "quarantine_revalidated", path=kept.path, folder=kept.name, reason=words, times=times
        )
        self._note_down(kept, words, "bad")

    def _unreadable(self, kept: Kept, reason: str) -> None:
        self._looks.labels("unreadable").inc()
        wait_s = self._patience.failed(f"{LOOKING} {kept.name}")
        self._events.record(
            "revalidate_failed",
            level="warning",
            path=kept.path,
            reason=reason,
            retry_in_s=round(wait_s, 1),
        )
        self._note_down(kept, f"it cannot be read now: {reason}", "unreadable")

    def _note_down(self, kept: Kept, words: str, figure: str | None) -> None:
        for asked in self._asking(kept):
            self._answer(
                asked, {"refused": words, "finding": figure == "bad", "again": figure == "unreadable"}
            )
        for round_ in self._rounds.values():
            round_.done.add(kept.name)
            round_.bad += figure == "bad"
            round_.unreadable += figure == "unreadable"

    def _asking(self, kept: Kept) -> list[str]:
        return [asked for asked, (name, _) in self._asked.items() if name == kept.name]

    def _answer(self, asked: str, answer: Mapping[str, Any]) -> None:
        del self._asked[asked]
        self._answers[asked] = answer

    def _mark(self, kept: Kept, **changes: Any) -> None:
        mark(self._directory / kept.name, **changes)
        self._changed()


def _filed_at(request_id: str) -> float:
    """When a request was filed, in seconds since 1970, from its id; now where that tells nothing."""
    try:
        return float(calendar.timegm(time.strptime(request_id.partition("-")[0], "%Y%m%dT%H%M%SZ")))
    except ValueError:
        return time.time()
