"""The hot directory as the stage-shard loop deals with it: owned, looked at after a start, kept tidy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.corpus.hot import HotSeen
from stoker.corpus.reconcile import reconcile
from stoker.corpus.sources import Source
from stoker.kit.daemon import DaemonContext
from stoker.kit.worker import WorkerExit
from stoker.store.errors import LockHeld, UnavailableError
from stokerd.crew import Crew, Job, Patience
from stokerd.shard_tasks import MODULES, ShardTasks
from stokerd.source_book import SourceBook

LISTER, SWEEP = "/lister", "/sweep"  # no source's path begins with a slash
OWNER_WAIT_S = 10.0
LOOK_EVERY_S = 30.0
TRIES_ONCE = 5


class HotYard:
    """Owns hot through its lister; `known` while it is owned and the records agree with what lies there."""

    def __init__(
        self, context: DaemonContext, crew: Crew, patience: Patience, tasks: ShardTasks, book: SourceBook
    ) -> None:
        self._context, self._crew, self._patience = context, crew, patience
        self._tasks, self._book = tasks, book
        self._hot = context.pipeline.hot_layout
        self._owned = self._looking = False
        self._look_due = 0.0
        self._believed: Mapping[str, Source] = {}  # the records as they were when the look began
        self._agreed = False
        self._why = ""  # the lister's word that hot is not there
        self.published: set[str] = set()  # the first 16 digits of the keys of the sets that lie there
        self._published_before: frozenset[str] = frozenset()  # as it was when the look began
        self._litter: list[str] = []

    def keep_owned(self) -> None:
        """Start the lister, which holds the owner lock, when none is at work."""
        if LISTER not in self._crew and self._patience.allows(LISTER):
            module, quiet_s = MODULES["list"]
            task = self._tasks.look(self._book.sources.values())
            self._crew.start("list", LISTER, module, task, quiet_s=quiet_s, keep_open=True)

    def waits_for_owner(self, since: float) -> bool:
        """Whether to wait on for the lock before anything is told; a dead disk is not waited for long."""
        undecided = not self._owned and not self._why
        return undecided and not self._context.stopping and time.monotonic() < since + OWNER_WAIT_S

    def hear(self, job: Job, message: Mapping[str, Any]) -> None:
        """Take the lister's words: it owns hot; what lies there."""
        if message["kind"] == "ready":
            self._owned = True
            self._look_due = 0.0
            self._looking = False
        elif message["kind"] == "hot":
            self._looking = False
            self._patience.succeeded(LISTER)
            names = ("parquet", "building", "published", "temporaries")
            self._agree(HotSeen(**{name: tuple(message[name]) for name in names}))

    def look_soon(self) -> None:
        """Have a look at the next occasion: what the last one found may not have got into the records."""
        self._look_due = 0.0

    def look_if_due(self) -> None:
        """Ask for a look: the first brings the records in line, later ones find what was taken away."""
        if self._owned and not self._looking and LISTER in self._crew and time.monotonic() >= self._look_due:
            self._looking = True
            self._look_due = time.monotonic() + LOOK_EVERY_S
            self._believed = dict(self._book.sources)
            self._published_before = frozenset(self.published)
            self._crew[LISTER].worker.send({"look": 1})

    def _agree(self, seen: HotSeen) -> None:
        # Only what nobody touched since the look began can be held against what it saw.
        busy = self._crew.busy
        still = {
            path: source
            for path, source in self._book.sources.items()
            if self._believed.get(path) is source and path not in busy
        }
        found = reconcile(self._hot, seen, still)
        for path, reason in found.renew:
            source = self._book.sources[path]
            self.published.discard(str(source.key)[:16])
            self._book.renew(source, reason, level="warning")
        self.published -= self._published_before - set(seen.published)
        if not self._agreed:  # later, what looks left over may just be in the making
            self.published = set(seen.published)
            self._litter += found.remove
            self._agreed = True

    def ended(self, job: Job, ended: WorkerExit) -> None:
        """The lister or a sweep ended; raises LockHeld when another pipeline owns hot."""
        if job.subject == LISTER and ended.code == LockHeld.exit_code and ended.error:
            raise LockHeld(str(ended.error["message"]))
        if job.subject == SWEEP and ended.kind == "finished":
            self._patience.succeeded(SWEEP)
            return
        if job.subject == SWEEP:
            self._litter += job.note["remove"]
        else:
            self._owned = False
            self._why = ended.reason() if ended.code == UnavailableError.exit_code else ""
        self._patience.failed(job.subject)
        self._context.events.record(f"{job.activity}_failed", level="warning", reason=ended.reason())
        if self._context.once and self._patience.failures(job.subject) >= TRIES_ONCE:
            raise UnavailableError(f"{self._hot.hot}: {ended.reason()}; is the disk there?")

    def discard(self, *paths: str) -> None:
        """Have these removed from hot at the next occasion."""
        self._litter += paths

    def discard_build(self, source: Source) -> None:
        """Have removed what was begun of the source's shard set."""
        if source.key is not None:
            name = str(self._hot.building / source.key[:16])
            self.discard(name, f"{name}.lock")

    def sweep(self) -> None:
        """Start removing what was discarded."""
        if self._litter and SWEEP not in self._crew and self._patience.allows(SWEEP):
            module, quiet_s = MODULES["sweep"]
            job = self._crew.start("sweep", SWEEP, module, {"remove": self._litter}, quiet_s=quiet_s)
            job.note["remove"], self._litter = self._litter, []

    @property
    def clearing(self) -> set[str]:
        """The paths on hot that are being removed or about to be; their source waits for it."""
        return {*self._litter, *(self._crew[SWEEP].note["remove"] if SWEEP in self._crew else ())}

    @property
    def known(self) -> bool:
        """Whether anything may be done on hot now."""
        return self._owned and self._agreed

    @property
    def trouble(self) -> str:
        """Why nothing can be done now; empty when hot was seen."""
        return "" if self.known else self._why or f"waiting for the hot directory {self._hot.hot} to answer"

    @property
    def tidy(self) -> bool:
        """Whether nothing waits to be removed."""
        return not self._litter
