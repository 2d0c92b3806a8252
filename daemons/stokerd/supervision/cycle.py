"""The supervisor's turns: wait, hear the workers, reap strays, show how it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.process.process_id import reap_strays
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool

TURN_S = 1.0
REAP_S = 2.0


class Stopped(Exception):
    """A stop was asked while nothing but waiting was going on."""


class Changed(Exception):
    """What the story stands on is about to change: its round is begun again."""


class Turns:
    """One loop for a story that is told in sequence.

    `doing` is what the story waits for, in words for people; `each` is done every turn; `show` makes the
    status snapshot and its line; `gap_s` is how long the last turn took, which tells a loop that was itself
    stopped from one that had nothing to do.
    """

    def __init__(self, context: DaemonContext, crew: WorkerPool[Any]) -> None:
        self.context = context
        self.crew = crew
        self.crews = [crew]  # all whose workers are children of this daemon; it hears the first
        self.doing = "starting"
        self.changed = ""  # what is about to change, in words: waiting ends, a trainer is stopped
        self.gap_s = 0.0
        self.guard_pid: int | None = None
        self.each: Callable[[], None] = lambda: None
        self.show: Callable[[], tuple[dict[str, Any], str]] = lambda: ({}, self.doing)
        self._ended: dict[str, WorkerExit] = {}
        self._turned_at = time.monotonic()
        self._reap_due = 0.0
        self._looked: dict[str, float] = {}

    def turn(self, timeout_s: float = TURN_S) -> None:
        """Wait for whatever comes first, at most timeout_s seconds, and take it in."""
        self.context.waiter.wait(timeout_s)
        for job, _, ended in self.crew.hear():  # words of progress only keep the worker's deadline away
            if ended is not None:
                self._ended[job.subject] = ended
        now = time.monotonic()
        self.gap_s, self._turned_at = now - self._turned_at, now
        if now >= self._reap_due:
            self._reap_due = now + REAP_S
            ours = {pid for crew in self.crews for pid in crew.pids}
            reap_strays(ours | ({self.guard_pid} if self.guard_pid else set()))
        self.each()
        self.context.beat(*self.show())

    def turn_or_stop(self, timeout_s: float = TURN_S) -> None:
        """The same; raises Stopped when a stop was asked, Changed when the round is to begin again."""
        self.turn(timeout_s)
        if self.context.stopping:
            raise Stopped
        if self.changed:
            raise Changed(self.changed)

    def pause(self, seconds: float, doing: str) -> None:
        """Turn for so long, unless a stop is asked."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.doing = f"{doing}, again in {left:.0f} s"
            self.turn_or_stop(min(TURN_S, left))

    def errand(
        self, activity: str, subject: str, module: str, task: Mapping[str, Any], *, quiet_s: float
    ) -> WorkerExit:
        """Have a worker do something and turn until it has ended."""
        self.crew.start(Activity(activity, module, quiet_s), subject, task, None)
        while True:
            self.turn_or_stop()
            ended = self.take(subject)
            if ended is not None:
                return ended

    def take(self, subject: str) -> WorkerExit | None:
        """How a worker ended, once; None while it works or where there is none."""
        return self._ended.pop(subject, None)

    def due(self, what: str, every_s: float) -> bool:
        """Whether it is time to look at something again, at most every so many seconds."""
        now = time.monotonic()
        if now < self._looked.get(what, 0.0):
            return False
        self._looked[what] = now + every_s
        return True

    def drop_work(self) -> None:
        """Stop every worker; what they found out is forgotten."""
        for subject in self.crew.busy:
            self.context.waiter.remove_fd(self.crew[subject].worker.fileno())
        self.crew.stop()
        self._ended.clear()
