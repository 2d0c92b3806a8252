"""Handles failures of a file, of the landing's disk, and of the whole source.

A failure of the disk or of the access is no file's fault: no new file is begun, one file is tried now and
then, and the first byte that arrives ends the pause. A file that cannot be fetched is given up, and tried
again after a long delay.
"""

from __future__ import annotations

import math
import time
from typing import Any, Literal

from stoker.corpus.fetch.messages import Said
from stoker.corpus.http.retry_rules import LOCAL, OF_THE_SOURCE, OURS
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import UnavailableError
from stoker.store.record import utc_at
from stokerd.download.state import State, Subject

GIVEN_UP_FIRST_S, GIVEN_UP_LAST_S = 600.0, 6 * 3600.0
ACCESS_EVERY_S = 600.0
LONG_WAIT_S = 60.0  # shorter waits for a server are normal and record no event
TRIES_ONCE = 3
_PAUSES: tuple[Subject, ...] = ("disk", "access")

Blame = Literal["disk", "access", "ours", "file"]


def blame(cause: str, *, is_repo: bool, something_came: bool) -> Blame:
    """Returns the blame for a failure; a failure of the disk, the access or Stoker gives up no file."""
    if cause in OURS:
        return "ours"
    if cause in LOCAL:
        return "disk"
    # A hub may forbid a single file: the source is to blame if no file came since its last refusal.
    if is_repo and cause in OF_THE_SOURCE and not (cause == "forbidden" and something_came):
        return "access"
    return "file"


class FetchFailures:
    """Pauses, retries and gives up files; `is_repo`: the source is a hub's repository."""

    def __init__(self, context: DaemonContext, state: State[Any], *, is_repo: bool) -> None:
        self._context, self._state, self._is_repo = context, state, is_repo
        self._retries, self._pauses = state.retries, state.pauses
        self._something_came = False  # since the last refusal
        self._durable, self._held_since = 0, math.inf
        self.waits = ""  # why no bytes arrive although the worker has files
        for path in () if context.once else state.paths["given_up"]:
            self._retries.retry_in(path, GIVEN_UP_FIRST_S)

    @property
    def paused(self) -> str:
        """Why no new file is begun; empty without a pause."""
        if self._context.reserve.spent:
            return "the state directory's disk is full"
        return self._pauses.reason("landing", *_PAUSES)

    def slots(self, free: int, now: float) -> int:
        """Returns how many free slots may be used now; a pause allows a single file at its retry time."""
        if self._context.reserve.spent:
            return 0
        if not self._pauses.reason(*_PAUSES):
            return free
        return 1 if now >= self._pauses.until(*_PAUSES) and not self._state.transfers else 0

    def next_due(self, now: float) -> float:
        """Returns when a pause ends, monotonic seconds."""
        due = (self._pauses.until("removal"), self._pauses.until(*_PAUSES))
        return min((each for each in due if each > now), default=math.inf)

    # Successes

    def went_well(self, path: str = "") -> None:
        """Ends the pauses after a file or bytes of a file arrived."""
        self._something_came = True
        if path:
            self._state.try_again(path)
        for subject in _PAUSES:
            self._pauses.end(subject, "download_resumed", reason=self._pauses.reason(subject))

    def listed_anew(self) -> None:
        """Retries files that were given up or refused: another revision is listed."""
        self._pauses.hurry("access")
        for path in self._state.paths["given_up"]:
            self._state.try_again(path)

    def removed(self) -> None:
        """Ends the removal pause and retries a full disk: a removed file freed space."""
        self._pauses.end("removal")
        self._pauses.hurry("disk")

    # Failures

    def failed(self, said: Said) -> bool:
        """Handles a failed file; returns whether it is given up. UnavailableError ends --once."""
        path, cause, reason, once = said.path, said.cause, said.reason, self._context.once
        blamed = blame(cause, is_repo=self._is_repo, something_came=self._something_came)
        if blamed == "disk":
            if cause != "gone":  # on "gone" the worker ends without a request
                self._pause("disk", "disk_full", reason, level="error")
            return False
        if blamed == "access":
            self._something_came = False
            until = time.monotonic() + ACCESS_EVERY_S
            self._pause("access", "source_refuses", reason, until, about=cause, level="error", kind=cause)
            return False
        wait_s, tries = self._retries.failed(path), self._retries.failures(path)
        if blamed == "file":
            wait_s = min(GIVEN_UP_LAST_S, GIVEN_UP_FIRST_S * 2 ** (tries - 1))
            self._retries.retry_in(path, wait_s)
        if once and (blamed == "file" or tries >= TRIES_ONCE):
            self._state.given_up.add(path)
        told = {"path": path, "kind": cause, "status": said.status, "reason": reason}
        event = "download_failed" if blamed == "ours" else "download_given_up"
        self._context.events.record(event, level="warning", **told, retry_in_s=round(wait_s, 1))
        return blamed == "file"

    def not_removed(self, path: str, reason: str) -> None:
        """Pauses removals after a failed removal; the intent remains."""
        reason = f"{path} cannot be removed: {reason}"
        self._pause("removal", "release_failed", reason, about=path, path=path)

    def no_landing(self, reason: str) -> None:
        """Pauses fetching because the worker refused the landing; the worker is started again later."""
        self._pause("landing", "landing_unavailable", reason, math.inf, level="error")

    def _pause(
        self, subject: Subject, alert: str, reason: str, until: float | None = None, **fields: Any
    ) -> None:
        """Pauses; with --once raises UnavailableError, without `until` only after TRIES_ONCE failures."""
        self._pauses.begin(subject, alert, reason, until=until, **fields)
        is_last = until is not None or self._pauses.tries.failures(subject) >= TRIES_ONCE
        if self._context.once and is_last:
            raise UnavailableError(reason)

    def look_at_waits(self, now: float) -> None:
        """Pauses for the servers while every file waits for its next try.

        An event is recorded for one long wait, and for tries that bring no bytes during download.stall.
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
        files = f"{len(transfers):,} file{'s' * (len(transfers) != 1)}"
        self.waits = f"{files} wait, tried again at {utc_at(time.time() + left_s)}: {held.why}"
        if left_s >= LONG_WAIT_S or now - self._held_since >= self._context.pipeline.download.stall:
            until = time.monotonic() + left_s
            self._pauses.begin("server", "downloads_wait", held.why, until=until, files=len(transfers))
