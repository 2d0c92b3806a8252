"""Worker that stays: fetches files over HTTP into the landing, several at once. Loads an HTTP client.

task: {"root", "dataset", "expected", "files_at_once", "bandwidth", "min_rate", "connect_s",
       "read_s", "commit_s", "backoff": [first_s, most_s], "attempts", "floor",
       "keep_files", "keep_bytes", "hub": {"repo", "repo_type", "endpoint"} or null, "token_file",
       "owner": the landing's owner, null without a check}
input, one request per line: {"fetch": {a RemoteFile's fields}}; {"remove": path}: unlink a whole file
messages: {"kind": "ready", "unmanaged": [path], "device"} once, as the first; unmanaged are other clients'
    partial files, left alone, device is the landing's st_dev; then, each with its "path",
    {"kind": "start", "offset"}, and {"kind": "progress", "bytes", "received"}: `bytes` are durable now
    {"kind": "hashing", "bytes"}: a file already there is being read
    {"kind": "retry", "class", "reason", "status", "wait_s"}: the next try is after wait_s
    {"kind": "anew", "bytes", "reason"}: the content differs from before, or from the written bytes
    {"kind": "mismatch", "about": {"expected", "found", "count", "evidence", "landed"}}: wrong content was
        set aside
    {"kind": "done", "how", "size", "sha256", "cached", "unproven", "fetched"} or
    {"kind": "failed", "class", "reason", "status"}: the end of a file
    {"kind": "removed"}, {"kind": "not_removed", "reason"}
    and, without a path, {"kind": "alive"} while no file is in work: all wait for their next try
`received` and `fetched` count a file's bytes over the network, repeated bytes twice.
result: {"status": "ended"} once its input is closed.
TERM or a closed input: received bytes are made durable; after TERM exit 75.
Exits 69 when the landing was replaced or has another owner.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.transfer import Bandwidth, FileFetch, Stopped, TransferConfig
from stoker.corpus.http.client import HttpClient, HttpConfig
from stoker.corpus.http.hub import HubRepo, hub_token, origin
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import COUNTED, FetchFailed, next_pause
from stoker.kit.loop import Backoff
from stoker.kit.workers.child import InputClosed, Report, paced, run_worker
from stoker.store.errors import StokerError, UnavailableError

_TURN_S = 0.5
_UNMANAGED_SHOWN = 100
_ALIVE_EVERY_S = 2.0


class Queue:
    """The files given and not ended, some being worked on. Thread-safe; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._files: dict[str, FileFetch] = {}
        self._closed_until: dict[object, float] = {}  # by server
        self.ended = False

    def add(self, file: FileFetch) -> None:
        """Adds a file, unless its path is queued already."""
        with self._changed:
            self._files.setdefault(file.file.path, file)
            self._changed.notify()

    def take(self) -> FileFetch | None:
        """Waits for the next file to try and returns it; None when the queue has ended."""
        with self._changed:
            while not self.ended:
                waiting = [(self._due(file), file) for file in self._files.values() if not file.in_hand]
                now = self._clock()
                if (ready := next((file for due, file in waiting if due <= now), None)) is not None:
                    ready.in_hand = True
                    return ready
                self._changed.wait(min(due for due, _ in waiting) - now + 0.001 if waiting else None)
            return None

    def put_back(self, file: FileFetch, wait_s: float, *, everywhere: bool) -> None:
        """Schedules another try after wait_s; `everywhere` delays all files of its server as well."""
        with self._changed:
            file.in_hand, file.not_before = False, self._clock() + wait_s
            if everywhere:
                server = origin(file.file.url)
                self._closed_until[server] = max(file.not_before, self._closed_until.get(server, 0.0))
            self._changed.notify_all()

    def remove(self, path: str) -> None:
        with self._changed:
            self._files.pop(path, None)

    def end(self) -> None:
        """Ends the queue: no more files are taken."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def in_hand(self) -> list[FileFetch]:
        """Returns the files that threads are working on."""
        with self._changed:
            return [file for file in self._files.values() if file.in_hand]

    def _due(self, file: FileFetch) -> float:
        return max(file.not_before, self._closed_until.get(origin(file.file.url), 0.0))


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Fetches requested files until the daemon closes the pipe or asks to stop."""
    return FetchWorker(task, report).run()


class FetchWorker:
    """The fetching threads, and the main thread, which reads the daemon's requests and commits bytes."""

    def __init__(self, task: dict[str, Any], report: Report) -> None:
        self._task, self._report = task, report
        self._landing = Landing(Path(task["root"]), task["dataset"], expected=task["expected"])
        self._owned = self._landing.own(task["owner"]) if task.get("owner") else None
        self._queue, self._gone = Queue(), ""
        self._alive = paced(lambda: report("alive"), _ALIVE_EVERY_S)
        names = ("min_rate", "read_s", "floor", "keep_files", "keep_bytes")
        limits = {name: task[name] for name in names}
        self._terms = TransferConfig(self._landing, Bandwidth(task["bandwidth"]), report, **limits)
        hub = task["hub"] and HubRepo(**task["hub"])
        token = hub_token(task["token_file"]) if hub else None
        manners = HttpConfig(task["connect_s"], task["read_s"], hub, token)
        self._callers = [HttpClient(manners) for _ in range(task["files_at_once"])]

    def run(self) -> dict[str, Any]:
        """Reads requests and commits received bytes, until the input closes or a stop is asked."""
        self._landing.sweep()
        for path in self._task["forget"]:
            self._landing.forget(path)
        device = self._landing.root.stat().st_dev
        self._report("ready", unmanaged=self._landing.unmanaged(_UNMANAGED_SHOWN), device=device)
        for caller in self._callers:
            threading.Thread(target=self._fetch, args=(caller,), daemon=True).start()
        commit = paced(self._commit, self._task["commit_s"])
        with contextlib.suppress(InputClosed):
            while not self._report.stopping:
                self._hear(self._report.receive(timeout_s=min(_TURN_S, self._task["commit_s"])) or {})
                commit()
                if not self._queue.in_hand():
                    self._alive()
                if self._gone:
                    raise UnavailableError(self._gone)
        self._queue.end()
        for file in self._queue.in_hand():
            file.stop()
        self._commit()
        self._report.raise_if_stopping()
        return {"status": "ended"}

    def _hear(self, wish: dict[str, Any]) -> None:
        if "fetch" in wish:
            file = RemoteFile(**wish["fetch"])
            self._queue.add(FileFetch(file, self._terms, Backoff(*self._task["backoff"])))
        elif "remove" in wish:
            try:
                self._landing.remove(wish["remove"])
                self._report("removed", path=wish["remove"])
            except StokerError as error:
                if isinstance(error, UnavailableError):
                    self._gone = str(error)
                self._report("not_removed", path=wish["remove"], reason=str(error))

    def _commit(self) -> None:
        for file in self._queue.in_hand():
            file.commit()

    # Work of the other threads

    def _fetch(self, caller: HttpClient) -> None:
        while (file := self._queue.take()) is not None:
            try:
                done = file.attempt(caller)
                self._end(file, "done", fetched=file.received, **asdict(done))
            except Stopped:
                return  # the main thread makes the bytes durable
            except FetchFailed as failure:
                self._failed(file, failure)
            except Exception as error:  # noqa: BLE001 - reported as this file's end; the other files continue
                traceback.print_exception(error)
                self._failed(file, FetchFailed("bug", f"{type(error).__name__}: {error}"))

    def _failed(self, file: FileFetch, failure: FetchFailed) -> None:
        """Schedules another try, or gives the file up."""
        if self._queue.ended:
            return
        details = {"class": failure.kind, "reason": failure.reason, "status": failure.status}
        wait_s = next_pause(failure, file.failures, self._task["attempts"], file.backoff.next())
        if wait_s is not None:
            self._report("retry", path=file.file.path, wait_s=round(wait_s, 3), **details)
            self._queue.put_back(file, wait_s, everywhere=failure.kind == "throttled")
            return
        if failure.kind == "gone":  # this process holds the former directory open
            self._gone = failure.reason
        if failure.kind in COUNTED:
            with contextlib.suppress(FetchFailed):
                file.forget()  # with its counts: a new request starts afresh
        file.close()
        self._end(file, "failed", **details)

    def _end(self, file: FileFetch, kind: str, **fields: Any) -> None:
        self._queue.remove(file.file.path)
        self._report(kind, path=file.file.path, **fields)


if __name__ == "__main__":
    run_worker(main)
