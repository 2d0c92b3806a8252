"""Drives the fetch worker, which holds the landing and is started again when it ends."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from stoker.corpus.fetch.messages import Said, fetch_task
from stoker.corpus.http.remote_file import RemoteFile
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import STOP_GRACE_S, Activity, WorkerPool
from stoker.observe.ledger import Claim, write_claims
from stoker.store.errors import UnavailableError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stokerd.download.state import State

FETCHER = "/fetcher"  # no source's path begins with a slash
FETCH = Activity("fetch", "stoker.corpus.fetch.fetch_worker", is_memory_bound=True, keep_open=True)
LEAST_SILENT_S = 6.0  # a healthy worker reports every two seconds, but has to start first
IDLE_S = 60.0  # after so long without work the worker ends: it holds memory and the landing
AHEAD = 4  # the worker gets so many times files_at_once, as some wait for their next try
CLAIM_EVERY_S = 10.0  # least time between two claims: each wakes the daemons that read the ledger


def most_rss_bytes(files_at_once: int) -> int:
    """Returns the memory limit of a fetch worker; a larger worker is ended and another started."""
    return (120 << 20) + (12 << 20) * max(0, files_at_once - 4)


class Fetcher:
    """The worker, if needed; its files are in the state's `transfers` and `removing`."""

    def __init__(self, context: DaemonContext, pool: WorkerPool[Any], state: State[Any]) -> None:
        self._context, self._pool, self._state = context, pool, state
        self._pipeline, self._events = context.pipeline, context.events
        silent_s = max(self._pipeline.download.stall, LEAST_SILENT_S)
        self._fetch = replace(FETCH, silent_s=silent_s)
        self._device: int | None = None  # of the landing's disk
        self._busy_at = 0.0
        self._is_leaving = False
        self._claimed = -1  # bytes; -1: unknown, from an earlier daemon
        self._claim_due = 0.0

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
            self._pool.start(self._fetch, FETCHER, fetch_task(self._pipeline, expected=expected), None)
        return FETCHER in self._pool and not self._is_leaving

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

    def hear(self, said: Said) -> RemoteFile | None:
        """Handles a message of the worker; returns the requested file that the message ends."""
        state = self._state
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
                state.counted["refetched_bytes"] += said.dropped
                told = {"path": said.path, "bytes": said.dropped, "reason": said.reason}
                self._events.record("download_anew", level="warning", **told)
            case "mismatch":
                state.counted["mismatches"] += 1
                names = ("path", "expected", "found", "count", "evidence", "landed")
                told = {name: getattr(said, name) for name in names}
                self._events.record("download_mismatch", level="warning", **told)
        return state.transfers.end(said.path) if said.kind in ("done", "failed") else None

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
            level="warning",
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
