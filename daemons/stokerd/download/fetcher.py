"""Drives the fetch worker, which holds the landing and is started again when it ends.

A failure of the disk or of the access is no file's fault: no new file is begun, one file is tried now and
then, and the first byte that arrives ends the pause. A file that cannot be fetched is given up, and tried
again after a long delay.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from typing import Any, Literal

from stoker.corpus.fetch.decide import FetchMessage
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import LOCAL, OF_THE_SOURCE, OURS
from stoker.corpus.source.remote_listing import access_to
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import STOP_GRACE_S, Activity, WorkerPool
from stoker.observe.ledger import Claim, write_claims
from stoker.store.errors import UnavailableError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import utc_at
from stokerd.download.state import State, Subject, Work

FETCHER = "/fetcher"  # no source's path begins with a slash
FETCH = Activity("fetch", "stoker.corpus.fetch.fetch_worker", is_memory_bound=True, keep_open=True)
LEAST_SILENT_S = 6.0  # a healthy worker reports every two seconds, but has to start first
MIN_RATE = 20 * 2**10  # bytes a second over a minute; a slower server is asked again
IDLE_S = 60.0  # after so long without work the worker ends: it holds memory and the landing
AHEAD = 4  # the worker gets so many times files_at_once, as some wait for their next try
CLAIM_EVERY_S = 10.0  # least time between two claims: each wakes the daemons that read the ledger

GIVEN_UP_FIRST_S, GIVEN_UP_LAST_S = 600.0, 6 * 3600.0
ACCESS_EVERY_S = 600.0
LONG_WAIT_S = 60.0  # shorter waits for a server are normal and record no event
TRIES_ONCE = 3
_PAUSES: tuple[Subject, ...] = ("disk", "access")

Blame = Literal["disk", "access", "ours", "file"]


def most_rss_bytes(files_at_once: int) -> int:
    """Returns the memory limit of a fetch worker; a larger worker is ended and another started."""
    return (120 << 20) + (12 << 20) * max(0, files_at_once - 4)


class Fetcher:
    """The worker, if needed; its files are in the state's `transfers` and `removing`."""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Work], state: State[Any]) -> None:
        self._context, self._pool, self._state = context, pool, state
        self._pipeline, self._events = context.pipeline, context.events
        silent_s = max(self._pipeline.download.stall, LEAST_SILENT_S)
        self._fetch = replace(FETCH, silent_s=silent_s)
        self._work = Work(self._pipeline.dataset.name)
        self._device: int | None = None  # of the landing's disk
        self._busy_at = 0.0
        self._is_leaving = False
        self._claimed = -1  # bytes; -1: unknown, from an earlier daemon
        self._claim_due = 0.0
        self._left: set[str] = set()  # files that left the source in the middle of their transfer

    # Requests to the worker

    def start_if_needed(self) -> bool:
        """Starts the worker; False while it may not start yet, or the present worker is leaving."""
        self._busy_at = time.monotonic()
        if FETCHER not in self._pool and self._state.retries.allows(FETCHER):
            # After earlier files the landing must exist: a missing landing is an unmounted disk.
            root = f"{self._pipeline.source_root}/"
            expected = any(
                each.file.startswith(root) and (each.usable or each.state == "releasing")
                for each in self._state.receipts.values()
            )
            self._pool.start(self._fetch, FETCHER, self._task(expected=expected), self._work)
            self._left.clear()
        return FETCHER in self._pool and not self._is_leaving

    def leave(self, path: str) -> None:
        """Ends the worker; the next one removes the bytes of this file, which is not listed any more."""
        self._left.add(path)
        self.end()

    def end(self) -> None:
        """Ends the worker, which forgets its files; received bytes stay."""
        if FETCHER in self._pool and not self._is_leaving:
            self._is_leaving = True
            self._pool[FETCHER].worker.ask_to_stop(STOP_GRACE_S)

    def end_if_idle(self) -> None:
        """Ends a worker that had no work for IDLE_S."""
        now = time.monotonic()
        if self._state.transfers or self._state.removing:
            self._busy_at = now
        elif now - self._busy_at >= IDLE_S:
            self.end()

    def _task(self, *, expected: bool) -> dict[str, Any]:
        """Returns the worker's task; `expected`: files landed before, so the landing must exist."""
        pipeline, download, quarantine = self._pipeline, self._pipeline.download, self._pipeline.quarantine
        return {
            "root": str(pipeline.source_root),
            "dataset": pipeline.dataset.name,
            "expected": expected,
            "files_at_once": download.files_at_once,
            "bandwidth": download.bandwidth,
            "min_rate": MIN_RATE,
            "attempts": download.attempts,
            "connect_s": min(20.0, download.stall),
            "read_s": min(60.0, download.stall / 3),
            "commit_s": 2.0,
            "backoff": (1.0, 60.0),
            "floor": pipeline.stage.free_floor,
            "keep_files": quarantine.keep_files,
            "keep_bytes": quarantine.keep_bytes,
            "owner": pipeline.owner,
            "forget": sorted(self._left - self._state.work.pending.keys()),
            **access_to(pipeline.dataset.source),
        }

    @property
    def free(self) -> int:
        """Returns how many more files the worker may get."""
        return self._pipeline.download.files_at_once * AHEAD - len(self._state.transfers)

    def fetch(self, file: RemoteFile) -> None:
        """Has a file fetched, or hashed in place: content with another sha256 than `landed` is not kept."""
        self._state.transfers.add(file.path, file.size, file)
        self._pool[FETCHER].worker.send({"fetch": asdict(file)})

    def remove(self, path: str) -> None:
        self._state.removing.add(path)
        self._pool[FETCHER].worker.send({"remove": path})

    # Reports of the worker

    def hear(self, said: FetchMessage) -> RemoteFile | None:
        """Handles a message of the worker; returns the requested file that the message ends."""
        state = self._state
        if said.kind == "failed" and self._is_leaving:
            return None  # other content may be listed since
        state.transfers.hear(said, time.monotonic())
        if said.kind in ("done", "progress", "hashing"):
            state.progress_at = time.time()
        if said.kind in ("done", "progress", "removed"):
            state.retries.succeeded(FETCHER)
        match said.kind:
            case "ready":
                self._device = said.device
            case "removed" | "not_removed":
                state.removing.discard(said.path)
            case "retry":
                state.failed_tries[said.cause if said.cause in state.failed_tries else "other"] += 1
                wait_s, info = round(said.wait_s, 1), self._context.log.info
                info("download_retry", path=said.path, reason=said.reason, retry_in_s=wait_s)
            case "anew":
                state.counted["refetched_bytes"] += said.bytes
                details = {"path": said.path, "bytes": said.bytes, "reason": said.reason}
                self._events.record("download_anew", **details)
            case "mismatch":
                state.counted["mismatches"] += 1
                self._events.record("download_mismatch", path=said.path, **said.about)
        ended = state.transfers.pop(said.path, None) if said.kind in ("done", "failed") else None
        return ended.wish if ended else None

    def ended(self, ended: WorkerExit) -> str:
        """Forgets the worker's files; returns why the landing cannot be used, or ""."""
        self._state.transfers.clear()
        self._state.removing.clear()
        was_asked, self._is_leaving = self._is_leaving, False
        if was_asked:
            return ""
        is_stalled = ended.kind == "silent"
        wait_s = self._state.retries.failed(FETCHER)
        if ended.code == UnavailableError.exit_code:
            return ended.reason()
        self._state.counted["restarts"] += 1
        if is_stalled and ended.stderr_tail:
            self._context.log.write("warning", "fetcher_stacks", "\n".join(ended.stderr_tail), {})
        self._events.record(
            "fetcher_stalled" if is_stalled else "fetcher_died",
            reason=ended.reason(),
            said=" | ".join(ended.stderr_tail[-5:])[:1000],
            retry_in_s=round(wait_s, 1),
        )
        return ""

    def claim(self, *, at_end: bool = False) -> None:
        """Claims the bytes to come on the landing's disk; the first claim and the last at once, changes
        every CLAIM_EVERY_S."""
        now, device = time.monotonic(), self._device
        size = 0 if at_end or device is None else self._state.transfers.to_come_bytes()
        if size != self._claimed and (self._claimed <= 0 or at_end or now >= self._claim_due):
            self._claimed, self._claim_due = size, now + CLAIM_EVERY_S
            root = str(self._pipeline.source_root)
            claims = (Claim(device, root, "landing", size),) if device is not None and size else ()
            write_claims(self._context.layout, DOWNLOAD_WATCHDOG, claims)


# Failures


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
        self._durable, self._came_at = 0, time.monotonic()
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

    # Failures

    def failed(self, said: FetchMessage) -> bool:
        """Handles a failed file; returns whether it is given up. UnavailableError ends --once."""
        path, cause, reason, once = said.path, said.cause, said.reason, self._context.once
        blamed = blame(cause, is_repo=self._is_repo, something_came=self._something_came)
        if blamed == "disk":
            if cause != "gone":  # on "gone" the worker ends without a request
                self._pause("disk", "disk_full", reason)
            return False
        if blamed == "access":
            self._something_came = False
            until = time.monotonic() + ACCESS_EVERY_S
            self._pause("access", "source_refuses", reason, until, about=cause, kind=cause)
            return False
        wait_s, tries = self._retries.failed(path), self._retries.failures(path)
        if blamed == "file":
            wait_s = min(GIVEN_UP_LAST_S, GIVEN_UP_FIRST_S * 2 ** (tries - 1))
            self._retries.retry_in(path, wait_s)
        if once and (blamed == "file" or tries >= TRIES_ONCE):
            self._state.given_up.add(path)
        details = {"path": path, "kind": cause, "status": said.status, "reason": reason}
        event = "download_failed" if blamed == "ours" else "download_given_up"
        self._context.events.record(event, **details, retry_in_s=round(wait_s, 1))
        return blamed == "file"

    def not_removed(self, path: str, reason: str) -> None:
        """Pauses removals after a failed removal; the intent remains."""
        reason = f"{path} cannot be removed: {reason}"
        self._pause("removal", "release_failed", reason, about=path, path=path)

    def no_landing(self, reason: str) -> None:
        """Pauses fetching because the worker refused the landing; the worker is started again later."""
        self._pause("landing", "landing_unavailable", reason, math.inf)

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
            self._durable, self._came_at = transfers.durable, now
            self._pauses.end("server", "downloads_go_on")
        waiting, self.waits = [file for file in transfers.values() if file.why], ""
        if not waiting or transfers.in_hand():
            return
        held = min(waiting, key=lambda file: file.due_at)
        left_s = max(0.0, held.due_at - now)
        files = f"{len(transfers):,} file{'s' * (len(transfers) != 1)}"
        self.waits = f"{files} wait, tried again at {utc_at(time.time() + left_s)}: {held.why}"
        if left_s >= LONG_WAIT_S or now - self._came_at >= self._context.pipeline.download.stall:
            until = time.monotonic() + left_s
            self._pauses.begin("server", "downloads_wait", held.why, until=until, files=len(transfers))
