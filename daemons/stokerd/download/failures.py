"""What follows when a file, the landing's disk, or the whole source does not do as it should.

A failure of the disk or of the access is nobody file's fault: nothing new is begun, one file is tried now and
then, and the first byte that comes ends the pause. A file that cannot be had is given up, told, and tried
again after a long while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.corpus.http.retry_rules import LOCAL
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.retries import Retries
from stoker.store.errors import UnavailableError
from stokerd.common.alerts import Alerts
from stokerd.download.fetcher import Fetcher
from stokerd.download.remote_lister import RemoteLister
from stokerd.download.source_kind import Desktop

DISK, ACCESS, REMOVAL = "/landing", "/access", "/removal"  # no source's path begins with a slash
GIVEN_UP_FIRST_S, GIVEN_UP_LAST_S = 600.0, 6 * 3600.0
ACCESS_EVERY_S = 600.0
TRIES_ONCE = 3
_OF_THE_SOURCE = ("gated", "unauthorized", "forbidden", "vanished")
_OF_OURS = (
    "storage",
    "bug",
)  # a place that cannot be written, or our own mistake: one file's, and not its fault


class FetchOutcomes:
    """`trouble` says why nothing can be fetched now, `pause_reason` why nothing new is.

    `given_up` are the paths that this daemon gave up; with --once they are not tried again.
    """

    def __init__(self, tools: Desktop, fetcher: Fetcher, lister: RemoteLister) -> None:
        self._context, self._patience, self._book = tools.context, tools.patience, tools.book
        self._events, self._told = tools.context.events, Alerts(tools.context.events)
        self._fetcher, self._lister = fetcher, lister
        self._slow = Retries(first_s=GIVEN_UP_FIRST_S, last_s=GIVEN_UP_LAST_S)
        self._paused: dict[str, str] = {}  # DISK or ACCESS: why
        self._landing = ""  # why the landing cannot be used
        self._something_came = False  # since the last refusal
        self.given_up: set[str] = set()
        if not self._context.once:
            for path in self._book.in_state("given_up"):
                self._patience.retry_in(path, self._slow.failed(path))

    @property
    def trouble(self) -> str:
        """In a sentence; empty while there is none."""
        return self._landing or self._paused.get(ACCESS, "")

    @property
    def pause_reason(self) -> str:
        """In a sentence; empty while there is none."""
        if self._context.reserve.spent:
            return "the state directory's disk is full"
        return self._landing or next(iter(self._paused.values()), "")

    def paused(self) -> dict[str, bool]:
        """By reason, for the gauge."""
        return {
            "disk": DISK in self._paused or bool(self._landing),
            "source": ACCESS in self._paused,
            "state": self._context.reserve.spent,
        }

    def slots(self, free: int, sent: int, now: float) -> int:
        """How many files may be begun now: during a pause one, when it is time to try."""
        if self._context.reserve.spent:
            return 0
        if not self._paused:
            return free
        may = all(now >= self._patience.not_before.get(subject, 0.0) for subject in self._paused)
        return 1 if may and not sent else 0

    def may_remove(self, now: float) -> bool:
        """Whether files may be unlinked now."""
        return now >= self._patience.not_before.get(REMOVAL, 0.0)

    def next_due(self, now: float) -> float:
        """When to try again."""
        subjects = (*self._paused, REMOVAL, "/fetcher")
        due = [self._patience.not_before[each] for each in subjects if each in self._patience.not_before]
        return min((each for each in due if each > now), default=now + 3600.0)

    # What went well

    def went_well(self, path: str) -> None:
        """A file came, or bytes of one: whatever stood in the way does not any more."""
        self._something_came = True
        if path:
            self.try_again(path)
        for subject in tuple(self._paused):
            self._patience.succeeded(subject)
            self._events.record("download_resumed", reason=self._paused.pop(subject))
        self._landing_is_back()

    def try_again(self, path: str) -> None:
        """Forget what a file did."""
        for patience in (self._patience, self._slow):
            patience.succeeded(path)
        self.given_up.discard(path)

    def listed_anew(self) -> None:
        """Another listing: what was given up, or refused, may be had by it."""
        if ACCESS in self._paused:
            self._patience.retry_in(ACCESS, 0.0)
        for path in self._book.in_state("given_up"):
            self.try_again(path)

    # What did not

    def failed(self, path: str, message: Mapping[str, Any]) -> bool:
        """A file's end without it; True when it is not to be given up. UnavailableError ends --once."""
        kind, reason = str(message["class"]), str(message["reason"])
        if kind in LOCAL and kind not in _OF_OURS:
            self._disk_failed(kind, reason)
            return True
        if self._is_of_the_source(kind):
            self._something_came = False
            self._refused(kind, reason)
            return True
        if kind in _OF_OURS:
            return self._ours_failed(path, kind, reason)
        wait_s = self._slow.failed(path)
        self._patience.retry_in(path, wait_s)
        self.given_up.add(path)
        self._events.record(
            "download_given_up",
            level="warning",
            path=path,
            reason=reason,
            kind=kind,
            status=message["status"],
            retry_in_s=round(wait_s),
        )
        return False

    def _is_of_the_source(self, kind: str) -> bool:
        if self._lister.repo is None or kind not in _OF_THE_SOURCE:
            return False
        return kind != "forbidden" or not self._something_came

    def _ours_failed(self, path: str, kind: str, reason: str) -> bool:
        wait_s = self._patience.failed(path)
        self._events.record(
            "download_failed",
            level="warning",
            path=path,
            kind=kind,
            reason=reason,
            retry_in_s=round(wait_s, 1),
        )
        if self._context.once and self._patience.failures(path) >= TRIES_ONCE:
            self.given_up.add(path)
        return True

    def _disk_failed(self, kind: str, reason: str) -> None:
        self._paused[DISK] = reason
        if self._patience.allows(DISK):  # of many files that fail together one is counted
            self._patience.failed(DISK)
        word = "disk_full" if kind == "disk_full" else "landing_unavailable"
        self._told.raise_(word, level="error", reason=reason)
        if self._context.once and self._patience.failures(DISK) >= TRIES_ONCE:
            raise UnavailableError(reason)
        if kind == "gone":  # what this worker holds open is the directory of before
            self._fetcher.restart(reason)

    def _refused(self, kind: str, reason: str) -> None:
        self._paused[ACCESS] = reason
        self._patience.retry_in(ACCESS, ACCESS_EVERY_S)
        self._told.raise_("source_refuses", kind, level="error", kind=kind, reason=reason)
        if self._context.once:
            raise UnavailableError(reason)

    def not_removed(self, path: str, reason: str) -> None:
        """A file that should go is still there; the intent stands."""
        self._patience.failed(REMOVAL)
        self._told.raise_("release_failed", path, path=path, reason=reason)
        if self._context.once and self._patience.failures(REMOVAL) >= TRIES_ONCE:
            raise UnavailableError(f"{path} cannot be removed: {reason}")

    def removed(self) -> None:
        """A file is gone: there is room again."""
        self._patience.succeeded(REMOVAL)
        if DISK in self._paused:
            self._patience.retry_in(DISK, 0.0)

    def fetcher_ended(self, ended: WorkerExit) -> None:
        """The fetch worker is no more; another is started when it may help."""
        reason = self._fetcher.ended(ended)
        if not reason:
            return
        if self._context.once:
            raise UnavailableError(reason)
        self._landing = reason
        self._told.raise_("landing_unavailable", level="error", reason=reason)

    def fetcher_is_ready(self) -> None:
        """It started: the landing is there."""
        self._landing_is_back()

    def _landing_is_back(self) -> None:
        if self._landing:
            self._landing = ""
            self._told.clear("landing_unavailable", tell="landing_available", path=str(self._fetcher.root))
