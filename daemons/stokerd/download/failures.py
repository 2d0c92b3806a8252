"""What follows when a file, the landing's disk, or the whole source does not do as it should.

A failure of the disk or of the access is no file's fault: nothing new is begun, one file is tried now and
then, and the first byte that comes ends the pause. A file that cannot be had is given up, told, and tried
again after a long while.
"""

from __future__ import annotations

import math
import time
from typing import Any

from stoker.corpus.fetch.failure import blame
from stoker.corpus.fetch.messages import Said
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.retries import Retries
from stoker.store.errors import UnavailableError
from stoker.store.names import utc_at
from stokerd.download.fetcher import FETCHER, Fetcher
from stokerd.download.state import State, Subject

GIVEN_UP_FIRST_S, GIVEN_UP_LAST_S = 600.0, 6 * 3600.0
ACCESS_EVERY_S = 600.0
LONG_WAIT_S = 60.0  # a shorter wait for a server is everyday business
TRIES_ONCE = 3
_PAUSES: tuple[Subject, ...] = ("disk", "access")


class FetchFailures:
    """Pauses, retries and gives up; `is_repo`: the source is a hub's repository."""

    def __init__(self, context: DaemonContext, state: State[Any], fetcher: Fetcher, *, is_repo: bool) -> None:
        self._context, self._events = context, context.events
        self._state, self._fetcher, self._is_repo = state, fetcher, is_repo
        self._retries, self._pauses = state.retries, state.pauses
        self._slow = Retries(first_s=GIVEN_UP_FIRST_S, last_s=GIVEN_UP_LAST_S)
        self._something_came = False  # since the last refusal
        self._durable, self._held_since = 0, math.inf
        self.waits = ""  # why nothing comes although files are with the worker
        if not context.once:
            for path in state.paths["given_up"]:
                self._retries.retry_in(path, self._slow.failed(path))

    # What may be done

    @property
    def paused(self) -> str:
        """Why nothing new is begun; empty while it is."""
        if self._context.reserve.spent:
            return "the state directory's disk is full"
        return self._pauses.reason("landing", *_PAUSES)

    def slots(self, now: float) -> int:
        """How many files may be begun now: during a pause one, when it is time to try."""
        if self._context.reserve.spent:
            return 0
        if not self._pauses.reason(*_PAUSES):
            return self._fetcher.slots
        return 1 if now >= self._pauses.until(*_PAUSES) and not self._state.transfers else 0

    def may_remove(self, now: float) -> bool:
        """Whether files may be unlinked now."""
        return now >= self._pauses.until("removal")

    def next_due(self, now: float) -> float:
        """When to try again what failed, monotonic seconds."""
        due = (self._pauses.until("removal"), self._pauses.until(*_PAUSES))
        fetcher = self._retries.not_before.get(FETCHER, 0.0)
        return min((each for each in (*due, fetcher) if each > now), default=math.inf)

    # What went well

    def went_well(self, path: str = "") -> None:
        """A file came, or bytes of one: what stood in the way does not any more."""
        self._something_came = True
        if path:
            self.try_again(path)
        for subject in _PAUSES:
            self._pauses.end(subject, "download_resumed", reason=self._pauses.reason(subject))
        self.landing_is_back()

    def landing_is_back(self) -> None:
        """The worker holds the landing."""
        self._pauses.end("landing", "landing_available", path=str(self._context.pipeline.source_root))

    def try_again(self, path: str) -> None:
        """Forget what a file did."""
        for retries in (self._retries, self._slow):
            retries.succeeded(path)
        self._state.given_up.discard(path)

    def listed_anew(self) -> None:
        """Another revision is listed: what was given up, or refused, may be had by it."""
        self._pauses.hurry("access")
        for path in self._state.paths["given_up"]:
            self.try_again(path)

    def removed(self) -> None:
        """A file is gone: there is room again."""
        self._pauses.end("removal")
        self._pauses.hurry("disk")

    # What did not

    def failed(self, message: Said) -> bool:
        """A file's end without it; whether it is given up. UnavailableError ends --once."""
        path, cause, reason = message.path, message.cause, message.reason
        match blame(cause, is_repo=self._is_repo, something_came=self._something_came):
            case "disk":
                self._disk_failed(cause, reason)
            case "access":
                self._refused(cause, reason)
            case "ours":
                wait_s = round(self._retries.failed(path), 1)
                told = {"path": path, "kind": cause, "reason": reason, "retry_in_s": wait_s}
                self._events.record("download_failed", level="warning", **told)
                if self._context.once and self._retries.failures(path) >= TRIES_ONCE:
                    self._state.given_up.add(path)
            case "file":
                wait_s = self._slow.failed(path)
                self._retries.retry_in(path, wait_s)
                if self._context.once:
                    self._state.given_up.add(path)
                told = {"path": path, "kind": cause, "reason": reason, "retry_in_s": round(wait_s)}
                self._events.record("download_given_up", level="warning", status=message.status, **told)
                return True
        return False

    def _disk_failed(self, cause: str, reason: str) -> None:
        if cause == "gone":
            return  # the worker ends: what it holds open is the directory of before
        self._pauses.begin("disk", "disk_full", reason, level="error")
        if self._context.once and self._pauses.tries.failures("disk") >= TRIES_ONCE:
            raise UnavailableError(reason)

    def _refused(self, cause: str, reason: str) -> None:
        self._something_came = False
        until = time.monotonic() + ACCESS_EVERY_S
        self._pauses.begin(
            "access", "source_refuses", reason, until=until, about=cause, level="error", kind=cause
        )
        if self._context.once:
            raise UnavailableError(reason)

    def not_removed(self, path: str, reason: str) -> None:
        """A file that should go is still there; the intent remains."""
        self._pauses.begin("removal", "release_failed", reason, about=path, path=path)
        if self._context.once and self._pauses.tries.failures("removal") >= TRIES_ONCE:
            raise UnavailableError(f"{path} cannot be removed: {reason}")

    def fetcher_ended(self, ended: WorkerExit) -> None:
        """The fetch worker is no more; another is started when it may help."""
        if reason := self._fetcher.ended(ended):
            if self._context.once:
                raise UnavailableError(reason)
            self._pauses.begin("landing", "landing_unavailable", reason, until=math.inf, level="error")

    def look_at_waits(self, now: float) -> None:
        """Pause for the servers while every file waits for its next try.

        The event is for a wait that is long by itself, and for tries that bring nothing for download.stall.
        """
        transfers = self._state.transfers
        if transfers.durable != self._durable or not transfers:
            self._durable, self._held_since = transfers.durable, math.inf
            self._pauses.end("server", "downloads_go_on")
        held, self.waits = transfers.held_up(), ""
        if held is None:
            return
        self._held_since = min(self._held_since, now)
        left_s = max(0.0, held.due_at - now)
        files = f"{held.files:,} file{'s' * (held.files != 1)}"
        self.waits = f"{files} wait, tried again at {utc_at(time.time() + left_s)}: {held.why}"
        if left_s >= LONG_WAIT_S or now - self._held_since >= self._context.pipeline.download.stall:
            until = time.monotonic() + left_s
            self._pauses.begin("server", "downloads_wait", held.why, until=until, files=held.files)
