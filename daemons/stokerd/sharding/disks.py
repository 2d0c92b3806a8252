"""A disk as the stage-shard loop deals with it: owned through a lister, looked at, measured, kept tidy.

What differs between hot and warm is in hot_yard.py and warm_yard.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.corpus.records.index import KeySet
from stoker.corpus.records.sources import Source
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.observe.ledger import Disk
from stoker.store.errors import LockHeld, UnavailableError
from stokerd.common.alerts import Told
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES, ShardTasks

OWNER_WAIT_S = 10.0
ANSWERS_WITHIN_S = 15.0
ANSWERS_AT_ONCE_S = 1.0  # nobody need know of a wait as short as this
LOOK_EVERY_S, MEASURE_EVERY_S = 30.0, 5.0
TRIES_ONCE = 5


class Yard(ABC):
    """Owns a disk; `known` while it is owned and the records agree with what lies there.

    `published` are the first 16 digits of the keys of the sets there, `disk` is its size as last measured.
    """

    place: str  # hot or warm
    configured = True

    def __init__(
        self,
        context: DaemonContext,
        crew: WorkerPool[Any],
        patience: Retries,
        *,
        root: Path,
        tasks: ShardTasks,
        book: SourceBook,
        told: Told,
    ) -> None:
        self.lister, self.sweeper = f"/{self.place}-lister", f"/{self.place}-sweep"  # never a source's path
        self._context, self._crew, self._patience = context, crew, patience
        self._root, self._tasks, self._book, self._told = root, tasks, book, told
        self._born = self._heard_at = time.monotonic()
        self._owned = self._agreed = False
        self._look_due = self._measure_due = 0.0
        self._asked_at: float | None = None  # when the look that is not answered yet was asked for
        self._silent_since: float | None = None  # since when an answer is waited for
        self._believed: Mapping[str, Source] = {}  # the records as they were when the look began
        self._published_before: frozenset[str] = frozenset()  # as it was when the look began
        self._number = self._needs = 0  # of the last measure asked for, and of the first that counts
        self._litter: list[str] = []
        self.litter_of: dict[str, str] = {}  # the source's path by what is removed of it
        self._why = ""  # the lister's word that the disk is not there
        self.published = KeySet()
        self.disk: Disk | None = None
        self.looked_from = 0.0  # when the last look that was answered had been asked for
        self.measured = False  # whether `disk` tells of all that ended so far
        self.writable = True
        self.mark: Mapping[str, Any] = {}  # by what workers know that it is this disk

    # Owning

    def keep_owned(self) -> None:
        """Start the lister, which holds the owner lock, when none is at work."""
        if self.lister not in self._crew and self._patience.allows(self.lister):
            task = self._tasks.look(self.place, self._root, self._expected())
            self._crew.start(ACTIVITIES["list"], self.lister, task, {})

    def waits_for_owner(self, since: float) -> bool:
        """Whether to wait on for the lock before anything is told; a dead disk is not waited for long."""
        undecided = not self._owned and not self._why
        return undecided and not self._context.stopping and time.monotonic() < since + OWNER_WAIT_S

    @abstractmethod
    def _expected(self) -> int:
        """How many sources have something there by the records."""

    # Looking and measuring

    def look_soon(self) -> None:
        """Have a look at the next occasion: what the last one found may not have got into the records."""
        self._look_due = 0.0

    def measure_soon(self) -> None:
        """What was measured does not count any more: something just ended that took or gave room."""
        self.measured = False
        self._needs = self._number + 1
        self._measure_due = 0.0

    def look_if_due(self) -> None:
        """Ask for a look: the first brings the records in line, later ones find what was taken away."""
        now = time.monotonic()
        if self.hanging:  # before its lister is given up: a mount may answer again within that time
            self._tell_unavailable(f"no answer for {ANSWERS_WITHIN_S:.0f} s")
        if not self._owned or self.lister not in self._crew:
            return
        if self._asked_at is None and now >= self._look_due:
            self._asked_at, self._look_due = now, now + LOOK_EVERY_S
            self._believed = dict(self._book.sources)
            self._published_before = frozenset(self.published)
            self._ask("look", now)
        elif now >= self._measure_due:
            self._ask("measure", now)

    def _ask(self, what: str, now: float) -> None:
        self._number += 1
        self._silent_since = self._silent_since or now
        self._measure_due = now + MEASURE_EVERY_S
        self._crew[self.lister].worker.send({what: self._number})

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take the lister's words: it owns the disk; what lies there; how much room there is."""
        self._heard_at = time.monotonic()
        match message["kind"]:
            case "ready":
                self._owned, self._look_due = True, 0.0
                self._asked_at = self._silent_since = None
            case "seen":
                self.looked_from = self._asked_at or 0.0
                self._asked_at, self._why = None, ""
                self._patience.succeeded(self.lister)
                self._agree(message)
                self._believed, self._published_before = {}, frozenset()  # with many sources they take room
                self._agreed = True
            case "measured":
                if self.hanging:
                    self.look_soon()  # it answers again: what lies there now is seen, and the trouble over
                self.disk, self.writable = Disk(**message["disk"]), bool(message["writable"])
                self.mark = message["owner"]
                self.measured = message["number"] >= self._needs
                self._silent_since = None if message["number"] == self._number else time.monotonic()

    @abstractmethod
    def _agree(self, message: Mapping[str, Any]) -> None:
        """Bring the records in line with what was seen."""

    def _untouched(self) -> dict[str, Source]:
        """The records nobody touched since the look began: only they can be held against what it saw."""
        busy = self._crew.busy
        return {
            path: source
            for path, source in self._book.sources.items()
            if self._believed.get(path) is source and path not in busy
        }

    # Keeping tidy

    def discard(self, *paths: str, of: str | None = None) -> None:
        """Have these removed from the disk at the next occasion; `of` is the source that waits for it."""
        self._litter += paths
        if of is not None:
            self.litter_of.update((path, of) for path in paths)

    def sweep(self) -> None:
        """Start removing what was discarded."""
        if self._litter and self.sweeper not in self._crew and self._patience.allows(self.sweeper):
            task = {"remove": self._litter, "disks": [self.mark] if self.mark else []}
            job = self._crew.start(ACTIVITIES["sweep"], self.sweeper, task, {})
            job.facts["remove"], self._litter = self._litter, []

    @property
    def clearing(self) -> set[str]:
        """The paths that are being removed or about to be; their source waits for it."""
        going = self._crew[self.sweeper].facts["remove"] if self.sweeper in self._crew else ()
        return {*self._litter, *going}

    @property
    def tidy(self) -> bool:
        """Whether nothing waits to be removed."""
        return not self._litter

    # Ends of its workers

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """The lister or a sweep ended; raises LockHeld when another pipeline owns the disk."""
        if job.subject == self.sweeper:
            self._swept(job, ended)
            return
        # By its name: a lister that is asked to stop, as this daemon is about to be, ends with the same code.
        if ended.error and ended.error["type"] == LockHeld.__name__:
            raise LockHeld(str(ended.error["message"]))
        self._owned, self.disk, self.measured = False, None, False
        self._asked_at = self._silent_since = None
        self._why = ended.reason() if ended.code == UnavailableError.exit_code else ""
        self._patience.failed(self.lister)
        self._tell_unavailable(ended.reason())
        self._give_up_once(self.lister, ended.reason())

    def _swept(self, job: Job[Any], ended: WorkerExit) -> None:
        self.measure_soon()
        if ended.kind == "finished":
            self._patience.succeeded(self.sweeper)
            for path in job.facts["remove"]:
                if path not in self._litter:
                    self.litter_of.pop(path, None)
        else:
            self._litter += job.facts["remove"]
            self._patience.failed(self.sweeper)
            self._told.trouble("sweep_failed", self.place, place=self.place, reason=ended.reason())
            self._give_up_once(self.sweeper, ended.reason())

    @abstractmethod
    def _tell_unavailable(self, reason: str) -> None:
        """Say that the disk is away, and what to do."""

    def _give_up_once(self, subject: str, reason: str) -> None:
        if self._context.once and self._patience.failures(subject) >= TRIES_ONCE:
            raise UnavailableError(f"{self._root}: {reason}; is the disk there?")

    # How it stands

    @property
    def known(self) -> bool:
        """Whether anything may be done there now."""
        return self._owned and self._agreed and self.disk is not None

    @property
    def hanging(self) -> bool:
        """Whether an answer is overdue: the mount says nothing now of what lies there."""
        since = self._silent_since
        return since is not None and time.monotonic() > since + ANSWERS_WITHIN_S

    @property
    def trouble(self) -> str:
        """Why nothing can be done now; empty when the disk was seen, and answers, or was just asked."""
        if self.known and not self.hanging:
            return ""
        if not self._why and time.monotonic() < self._heard_at + ANSWERS_AT_ONCE_S:
            return ""
        return self._why or f"waiting for the {self.place} directory {self._root} to answer"
