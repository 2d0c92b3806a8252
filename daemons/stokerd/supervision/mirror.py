"""The mirror beside everything else: what is proven is copied to warm, one at a time, and thinned out.

No trouble on warm stops training: it is an event, a line in the status, and another try, for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.mirror.layout import MARK_HEX, Local, Mirrored, superfluous, waiting
from stoker.checkpoints.select import History
from stoker.kit.context import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.retries import Retries
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.errors import StorageError
from stoker.store.layout import WarmLayout
from stoker.supervise.mirror.inventory import Checkpoints
from stoker.supervise.mirror.state import MirrorBook
from stoker.supervise.report.metrics import Meters
from stokerd.supervision.cycle import Turns
from stokerd.supervision.mirror_tasks import SUBJECT, MirrorTasks
from stokerd.supervision.run_store import RunBook

TEND_S = 1.0
LOOK_AGAIN_S = 3600.0  # somebody may have cleared warm by hand
COMPLAINT_S = 600.0
QUIET_S = 90.0  # a worker that is well has said something by then
PRUNE_AGAIN_S = 30.0  # what is left then is being read
BESIDE = ("copy", "prune")  # what goes on beside training
HANGS = "a worker of an earlier supervisor hangs in a file system that does not answer; look at the mount"


class MirrorDesk:
    """The mirror of one run; `trouble` says why the last try at something failed, until it succeeds."""

    def __init__(
        self,
        context: DaemonContext,
        turns: Turns,
        meters: Meters,
        *,
        shelf: Checkpoints,
        book: RunBook,
        warm: WarmLayout,
    ) -> None:
        self.events, self.turns, self.meters = context.events, turns, meters
        self.shelf, self.run_book = shelf, book
        self.run = context.layout.run(context.pipeline.train.run)
        self.tasks = MirrorTasks(context, warm, turns)
        self.book = MirrorBook(self.run.mirror, context.layout.quarantine)
        self.patience = Retries()
        self.trouble: str | None = None
        self.lent = False  # somebody else has the worker
        self._troubled_verb = ""
        self._complain_at = 0.0
        self._look_at = self._prune_at = 0.0
        self._told_foreign = False
        self._copying: Local | None = None
        self._queue: list[Local] = []
        self._proven: set[str] = set()  # names in the mirror that were proven in this daemon's life

    def tend(self) -> None:
        """One turn: hear the worker and give it the next thing to do; trouble of any kind is only said."""
        if self.lent:
            return
        try:
            ended = self.tasks.hear()
            if ended is not None:
                self._take(ended)
            if self.tasks.busy or self.run_book.record is None:
                self._watch()
                return
            if ended is not None or self.turns.due("mirror", TEND_S):
                self._go_on()
        except StorageError as problem:
            self.failed(self.tasks.verb, str(problem))

    def settled(self) -> bool:
        """Whether nothing is left to do, or nothing can be done now."""
        if self.trouble is not None or self.run_book.record is None:
            return True
        history = self.history()
        left = self._wanted(history) or (self._prune_at < time.monotonic() and self._unwanted(history))
        return not (self.tasks.busy or left)

    def cancel(self) -> None:
        """Stop and reap the worker: what it reads is about to be moved. A copy it began is gone on with."""
        if self.tasks.busy:
            self.tasks.cancel()
            self._look_at = 0.0  # it may have come to its end
        self._copying = None

    def history(self) -> History:
        """The history of the run's current timeline."""
        return ancestry(read_timelines(self.run.timelines))

    def run_id(self) -> str | None:
        """The run's id, if its record is there."""
        return self.run_book.record.identity.run_id if self.run_book.record else None

    def logs(self) -> list[str]:
        """What else of the run should outlive its disk: rows and launches, for the audit and a replay."""
        return [str(self.run.metrics), str(self.run.launches)]

    def status(self) -> dict[str, Any]:
        """How the mirror stands."""
        newest = max(self.book.copies, key=lambda one: (one.timeline, one.step), default=None)
        copying = self._copying if self.tasks.busy else None
        return {
            "step": newest.step if newest else None,
            "copies": len(self.book.copies),
            "waiting": len(self._queue),
            "copying": copying.step if copying else None,
            "copying_bytes": self.tasks.bytes if copying else 0,
            "trouble": self.trouble,
        }

    def _watch(self) -> None:
        """A worker that says nothing is trouble before its deadline, and when not even a kill ends it."""
        if self.tasks.busy and self.tasks.quiet_s > QUIET_S and self.trouble is None:
            self.failed(self.tasks.verb, f"warm does not answer: {self.tasks.quiet_s:.0f} s without a word")

    # What comes next

    def _go_on(self) -> None:
        """Look first; then the newest checkpoint that waits; then what the mirror need not keep."""
        history = self.history()
        self._queue = self._wanted(history)
        if not self.patience.allows(SUBJECT):
            return
        if not self.tasks.alone():
            self.failed("list", HANGS)
        elif time.monotonic() >= self._look_at:
            self._start("list", run_id=self.run_id())
        elif self._queue:
            self._copying = one = self._queue[0]
            held = self.run_book.begun.heldout
            heldout = {"path": str(self.run.heldout), "sha256": held.sha256} if held else None
            source = str(self.run.checkpoints / one.name)
            self.book.begin(self._copy_of(one))
            logs = {"run_id": self.run_id(), "paths": self.logs()}
            self._start("copy", source=source, digest=one.digest, heldout=heldout, logs=logs)
        elif (unwanted := self._unwanted(history)) and time.monotonic() >= self._prune_at:
            self._start("prune", names=unwanted)
        else:
            self.succeeded(self._troubled_verb)  # what could not be done is no longer wanted

    def _wanted(self, history: History) -> list[Local]:
        return waiting(self.shelf.local(), self.book.copies, history, self.shelf.policy)

    def _unwanted(self, history: History) -> list[str]:
        newest = self.book.newest(history)
        if newest is None or newest.name not in self._proven:
            return []
        return [one.name for one in superfluous(self.book.copies, history, self.shelf.policy, newest)]

    def _copy_of(self, one: Local) -> Mirrored:
        mark = one.digest[:MARK_HEX]
        return Mirrored(one.timeline, one.step, mark, one.bytes, self.run_id(), one.val_loss)

    def _start(self, verb: str, **words: Any) -> None:
        self.tasks.start(verb, expected=self.book.expected, **words)

    # What came of it

    def _take(self, ended: WorkerExit) -> None:
        verb, result = self.tasks.verb, ended.result
        if result is None:
            self.failed(verb, ended.reason())
        elif verb == "list":
            self.listed(result)
        elif verb == "prune":
            self.succeeded(verb)
            self.book.gone(result["gone"])
            self._prune_at = 0.0 if result["gone"] else time.monotonic() + PRUNE_AGAIN_S
            if result["gone"]:
                self.events.record("mirror_pruned", names=result["gone"])
        elif verb == "copy" and self._copying is not None:
            self._copied(self._copying, result)

    def listed(self, result: Mapping[str, Any]) -> None:
        """Take in a look."""
        self.succeeded("list")
        self._look_at = time.monotonic() + LOOK_AGAIN_S
        self.book.looked(Mirrored(**copy) for copy in result["copies"])
        if result["foreign"] and self.run_id() is not None and not self._told_foreign:
            self._told_foreign = True
            self.events.record(
                "mirror_foreign",
                "warning",
                run_ids=result["foreign"],
                message="the mirror holds checkpoints of other runs of this name; they are left alone",
            )

    def _copied(self, one: Local, result: Mapping[str, Any]) -> None:
        path = f"checkpoints/{one.name}"
        if "source_bad" in result:
            self.shelf.forget(one.name)
            self.events.record(
                "mirror_source_differs",
                "warning",
                path=path,
                reason=result["source_bad"],
                message="it is proven again before anything is made of it",
            )
            return
        self.succeeded("copy")
        copy = self._copy_of(one)
        self.book.copied(copy)
        self.events.record("checkpoint_mirrored", step=one.step, path=path, copy=copy.name)
        if result["set_aside"]:
            self.events.record(
                "mirror_copy_bad", "warning", copy=copy.name, moved_to=result["set_aside"], replaced=True
            )
        self._proven.add(copy.name)
        self._queue = self._wanted(self.history())

    def failed(self, verb: str, reason: str) -> None:
        """Something could not be done on warm: said now and then, and tried again, later and later."""
        self.patience.failed(SUBJECT)
        self.meters.mirror_failures.inc()
        self._look_at = 0.0
        now = time.monotonic()
        if self.trouble is None or now >= self._complain_at:
            self._complain_at = now + COMPLAINT_S
            self.events.record(
                "mirror_failed",
                "warning",
                doing=verb,
                reason=reason,
                message="training goes on; it is tried again until it succeeds",
            )
        self.trouble, self._troubled_verb = reason, verb

    def succeeded(self, verb: str) -> None:
        """Something was done on warm: the trouble is over, unless it was with work still to be done."""
        if self.trouble is None or (self._troubled_verb in BESIDE and verb != self._troubled_verb):
            return
        self.trouble = None
        self.patience.succeeded(SUBJECT)
        self.events.record("mirror_recovered", doing=verb)
