"""The quarantine in the stage-shard loop's hands: what is kept of it, what goes, and an event for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.corpus.quarantine.directory import KINDS, Kept, QuarantineShelf, mark
from stoker.corpus.quarantine.rules import Drop, drops
from stoker.corpus.records.receipts import Receipt
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.shards.audit.recheck import DROP, RELEASE, REVALIDATE
from stoker.store.files import remove_tree
from stoker.store.names import utc_now
from stoker.store.requests import Request
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.recheck import LOOKING, ReleaseDesk
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES

DROPPING = "/quarantine-drop"  # never a source's path
READ_EVERY_S = 5.0

Answer = Mapping[str, Any] | None


class QuarantineDesk:
    """Keeps the budget, does what people ask, and lets the release desk look at things again."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        patience: Retries,
        book: SourceBook,
        outcomes: SourceOutcomes,
        hot: HotYard,
    ) -> None:
        self._events, self._budget = context.events, context.pipeline.quarantine
        self._directory = context.layout.quarantine
        self._crew, self._patience, self._book = crew, patience, book
        self._shelf = QuarantineShelf(self._directory)
        self._kept: tuple[Kept, ...] = ()
        self._read_due, self._stamp = 0.0, -1
        self._seen: tuple[tuple[Kept, ...], int] = ((), -1)  # what was last decided on
        self._going = False  # whether something of it was still to go
        self._gone: dict[str, int] = {}  # the bytes of what went with its reason, by name
        self.releases = ReleaseDesk(
            context,
            crew=crew,
            patience=patience,
            book=book,
            outcomes=outcomes,
            hot=hot,
            changed=self._read_soon,
        )
        self.verbs: dict[str, Callable[[Request], Answer]] = {
            RELEASE: lambda request: self.releases.consider(request, self._named(request)),
            REVALIDATE: self.releases.consider_round,
            DROP: self._consider_drop,
        }
        metrics = context.metrics
        self._files = metrics.gauge("quarantine_files", "Things kept in quarantine.", ("kind",))
        self._bytes = metrics.gauge("quarantine_bytes", "Bytes kept in quarantine.", ("kind",))
        self._dropped = metrics.counter("quarantine_dropped_total", "Things given up.", ("kind",))
        for kind in KINDS:
            self._dropped.labels(kind)

    def act(self, receipts: Mapping[str, Receipt]) -> None:
        """One turn: tell what became of things, have one of them go, have one looked at."""
        self._read()
        seen = (self._kept, self._book.changes)
        if self._going or seen[0] is not self._seen[0] or seen[1] != self._seen[1]:
            self._seen = seen
            self.releases.tell(self._kept)
            if self.releases.lost(self._kept):
                self._read_soon()
                self._read()  # a folder's time stamp may hide what was made in the same instant
                self.releases.find(self.releases.lost(self._kept))
            self._keep_budget()
            self._read()
        self.releases.act(self._kept, receipts)

    def takes(self, job: Job[Any]) -> bool:
        """Whether this job is the desk's."""
        return job.subject in (DROPPING, LOOKING)

    def ended(self, job: Job[Any], ended: WorkerExit, receipts: Mapping[str, Receipt]) -> None:
        """A worker of the desk's ended."""
        self._read_soon()
        if job.subject == LOOKING:
            self.releases.ended(job, ended, receipts)
        elif ended.kind == "finished":
            self._patience.succeeded(DROPPING)
        else:
            wait_s = self._patience.failed(DROPPING)
            self._events.record(
                "quarantine_drop_failed",
                level="warning",
                folder=job.facts["name"],
                reason=ended.reason(),
                retry_in_s=round(wait_s, 1),
            )

    # Reading

    def _read_soon(self) -> None:
        self._read_due = 0.0

    def _read(self) -> None:
        """Look through it where something changed; a folder more or less shows in the directory's time."""
        now = time.monotonic()
        try:
            stamp = self._directory.stat().st_mtime_ns
        except FileNotFoundError:  # somebody took it away: it is made again with the next thing in it
            stamp = 0
        if stamp == self._stamp and now < self._read_due:
            return
        self._stamp, self._read_due = stamp, now + READ_EVERY_S
        self._kept = self._shelf.read()
        for kind in KINDS:
            things = [kept for kept in self._kept if kept.kind == kind and kept.things]
            self._files.labels(kind).set(len(things))
            self._bytes.labels(kind).set(sum(kept.bytes for kept in things))

    def _named(self, request: Request) -> Kept | None:
        self._read_soon()
        self._read()
        return next((kept for kept in self._kept if kept.name == request.args.get("name")), None)

    # Giving things up

    def _keep_budget(self) -> None:
        busy = {path for path, activity in self._crew.busy.items() if activity == "quarantine"}
        if self.releases.looking_at is not None:
            busy.add(self.releases.looking_at)
        going = drops(
            self._kept,
            self._book.sources,
            keep_files=self._budget.keep_files,
            keep_bytes=self._budget.keep_bytes,
            busy=busy,
        )
        chosen = list(going)
        self._going = bool(chosen)
        for drop in chosen:  # all at once: with the first of them gone, an older one would fit again
            if drop.kept.dropping is None:
                intent = {"why": drop.why, "bytes": drop.kept.bytes}
                mark(self._directory / drop.kept.name, dropping=intent)
                self._read_soon()
        for drop in chosen:
            if not drop.kept.things:
                self._finish(drop)
            elif DROPPING not in self._crew and self._patience.allows(DROPPING):
                self._start(drop.kept)

    def _start(self, kept: Kept) -> None:
        remove = [str(self._directory / kept.name / thing) for thing in kept.things]
        job = self._crew.start(ACTIVITIES["drop"], DROPPING, {"remove": remove}, {})
        job.facts["name"] = kept.name
        self._read_soon()

    def _finish(self, drop: Drop) -> None:
        """It is gone: first the event, then the mark that there was one."""
        kept, intent = drop.kept, drop.kept.dropping or {}
        size = int(intent.get("bytes", 0))
        self._events.record(
            "quarantine_dropped", kind=kept.kind, path=kept.path, folder=kept.name, bytes=size, why=drop.why
        )
        self._dropped.labels(kept.kind).inc()
        if intent.get("reason_too"):
            self._gone[kept.name] = size
            remove_tree(self._directory / kept.name)
        else:
            dropped = {"time": utc_now(), "why": drop.why, "bytes": size}
            mark(self._directory / kept.name, dropping=None, dropped=dropped)
        self._read_soon()

    def _consider_drop(self, request: Request) -> Answer:
        name, kept = str(request.args.get("name")), self._named(request)
        if kept is None:
            return {"dropped": name, "bytes": self._gone.pop(name, 0)}
        if kept.kind == "checkpoint":
            return {"refused": "quarantined checkpoints are the train supervisor's to drop"}
        reason_too = request.args.get("reason_too") is True
        if kept.dropping is None and not kept.things and not reason_too:
            return {"dropped": name, "bytes": int((kept.dropped or {}).get("bytes", 0))}
        if self.releases.looking_at != kept.path and (kept.dropping or {}).get("reason_too") != reason_too:
            dropping = {"why": f"asked for by {request.by}", "bytes": kept.bytes, "reason_too": reason_too}
            mark(self._directory / kept.name, dropping=dropping)
            self._read_soon()
        return None
