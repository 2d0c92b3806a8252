"""Drives the fetch worker, which holds the landing and is started again when it ends."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from stoker.corpus.fetch.messages import Said, fetch_task
from stoker.corpus.http.remote_file import RemoteFile
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, WorkerPool
from stoker.store.errors import UnavailableError
from stokerd.download.state import State

FETCHER = "/fetcher"  # no source's path begins with a slash
FETCH = Activity("fetch", "stoker.corpus.fetch.fetch_worker", is_memory_bound=True, keep_open=True)
LEAST_SILENT_S = 6.0  # a healthy worker reports every two seconds, but has to start first
IDLE_S = 60.0  # after so long without work the worker ends: it holds memory and the landing
AHEAD = 4  # the worker gets so many times files_at_once, as some wait for their next try


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
        self.device: int | None = None  # of the landing's disk
        self._busy_at = 0.0
        self._is_leaving = False

    # Requests to the worker

    def start_if_needed(self) -> bool:
        """Starts the worker; False while it may not start yet, or an idle worker is leaving."""
        self._busy_at = time.monotonic()
        if FETCHER not in self._pool and self._state.retries.allows(FETCHER):
            # After earlier files the landing must exist: a missing landing is an unmounted disk.
            root, receipts = str(self._pipeline.source_root), self._state.receipts.values()
            landed = (
                each.usable or each.state == "releasing"
                for each in receipts
                if each.file.startswith(f"{root}/")
            )
            task = fetch_task(self._pipeline, expected=any(landed))
            self._pool.start(self._fetch, FETCHER, task, None)
            self._is_leaving = False
        return FETCHER in self._pool and not self._is_leaving

    def end_if_idle(self) -> None:
        """Ends a worker that had no work for IDLE_S."""
        now = time.monotonic()
        if self._state.transfers or self._state.removing:
            self._busy_at = now
        elif FETCHER in self._pool and not self._is_leaving and now - self._busy_at >= IDLE_S:
            self._is_leaving = True
            self._pool[FETCHER].worker.close_input()

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

    def drop(self, path: str) -> None:
        """Has the worker forget a file and its bytes."""
        self._pool[FETCHER].worker.send({"drop": path})

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
                self.device = said.device
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
        return state.transfers.end(said.path) if said.kind in ("done", "failed", "dropped") else None

    def ended(self, ended: WorkerExit) -> str:
        """Forgets the worker's files; returns why the landing cannot be used, or ""."""
        self._state.transfers.clear()
        self._state.removing.clear()
        if ended.kind == "finished":
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
