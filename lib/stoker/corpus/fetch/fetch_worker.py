"""Worker that stays: fetches files over HTTP into the landing, several at once. It brings an HTTP client.

task: {"root", "dataset", "expected", "files_at_once", "bandwidth", "min_rate", "window_s", "connect_s",
       "read_s", "head_s", "commit_s", "commit_bytes", "backoff": [first_s, most_s], "attempts", "floor",
       "keep_files", "keep_bytes", "hub": {"repo", "repo_type", "endpoint"} or null, "token_file",
       "owner": whose the landing is, null where nobody asks}
input, a line a wish: {"fetch": {a RemoteFile's fields}}; {"drop": path}: give it up and forget its bytes;
    {"remove": path}: unlink a whole file; {"bandwidth": bytes a second or null}
messages: {"kind": "ready", "unfinished": [[path, bytes]], "foreign": [path], "device"} once, as the first;
    foreign are other clients' partial files, left alone, device is the landing's st_dev; then, each with its
    "path",
    {"kind": "start", "offset"}, and {"kind": "progress", "bytes", "received"}: `bytes` are durable now
    {"kind": "hashing", "bytes"}: what lies there already is read
    {"kind": "retry", "class", "reason", "status", "wait_s"}: it is tried again after that
    {"kind": "anew", "dropped", "reason"}: the content is another than before
    {"kind": "rotten", "bytes"}: what was kept is not what was written; it is dropped
    {"kind": "mismatch", "expected", "found", "count", "evidence", "landed"}: wrong content was set aside
    {"kind": "done", "how", "size", "sha256", "etag", "cached", "fetched"} or
    {"kind": "failed", "class", "reason", "status", "errno"}: the end of a file
    {"kind": "dropped"}, {"kind": "removed"}, {"kind": "not_removed", "reason"}
    and, without a path, {"kind": "alive", "files"} while nothing is in hand: all wait for their next try
`received` and `fetched` count what came over the network for that file, twice what came twice.
result: {"status": "ended"} once its input is closed and nothing is left.
TERM: what came is made durable, exit 75. Exits 69 when the landing is not the directory it was, or another's.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.landing import Landing
from stoker.corpus.fetch.landing_evidence import sweep_evidence
from stoker.corpus.fetch.landing_owner import own
from stoker.corpus.fetch.queue import Queue
from stoker.corpus.fetch.transfer import FileOnItsWay, Stopped, Terms
from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.rate_limits import Bandwidth
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import COUNTED, FetchFailed, next_pause
from stoker.kit.backoff import Backoff
from stoker.kit.workers.child import InputClosed, Report, WorkerStopped, run_worker
from stoker.store.errors import StokerError

_TURN_S, _DRAIN_S = 0.5, 0.05
_FOREIGN_SHOWN = 100
_ALIVE_EVERY_S = 2.0
_HASHING_EVERY_S = 1.0
_FAREWELL_S = 3.0  # for the last commits; what hangs then loses a commit's worth


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Fetch what is asked for until the daemon closes the pipe or asks to stop."""
    return FetchWorker(task, report).run()


class FetchWorker:
    """The hands that fetch, the one that commits, and the main thread, which hears the daemon."""

    def __init__(self, task: dict[str, Any], report: Report) -> None:
        self._task, self._report = task, report
        self._landing = Landing(Path(task["root"]), task["dataset"], expected=task["expected"])
        self._owned = own(self._landing, task["owner"]) if task.get("owner") else None
        self._bandwidth = Bandwidth(task["bandwidth"])
        self._queue = Queue()
        self._due = threading.Event()  # a commit is
        self._heard_hashing = 0.0
        self._said = time.monotonic()
        self._terms = Terms(
            landing=self._landing,
            bandwidth=self._bandwidth,
            tell=self._tell,
            commit_bytes=task["commit_bytes"],
            min_rate=task["min_rate"],
            window_s=task["window_s"],
            floor=task["floor"],
            keep_files=task["keep_files"],
            keep_bytes=task["keep_bytes"],
        )
        hub = task["hub"] and HubRepo(**task["hub"])
        token = hub_token(task["token_file"]) if hub else None
        manners = Manners(task["connect_s"], task["read_s"], hub, token)
        self._callers = [Caller(manners) for _ in range(task["files_at_once"])]

    def run(self) -> dict[str, Any]:
        """Hear wishes, watch the hands, say that we live."""
        sweep_evidence(self._landing)
        unfinished = [[record.path, record.offset] for record in self._landing.unfinished()]
        self._report(
            "ready",
            unfinished=unfinished,
            foreign=self._landing.foreign(_FOREIGN_SHOWN),
            device=self._landing.root.stat().st_dev,
        )
        hands = [threading.Thread(target=self._fetch, args=(each,), daemon=True) for each in self._callers]
        for thread in (*hands, threading.Thread(target=self._commit, daemon=True)):
            thread.start()
        open_input = True
        while not self._report.stopping and (open_input or len(self._queue)):
            if open_input:
                try:
                    self._hear(self._report.receive(timeout_s=_TURN_S))
                except InputClosed:
                    open_input = False
            else:
                time.sleep(_DRAIN_S)
            self._watch()
        self._queue.end()
        if self._report.stopping:
            self._part(hands)
            raise WorkerStopped
        return {"status": "ended"}

    # What the daemon wants

    def _hear(self, wish: dict[str, Any] | None) -> None:
        if wish is None:
            return
        if "fetch" in wish:
            file = RemoteFile.from_fields(wish["fetch"])
            self._queue.add(FileOnItsWay(file, self._terms, Backoff(*self._task["backoff"])))
        elif "drop" in wish:
            self._drop(wish["drop"])
        elif "remove" in wish:
            self._remove(wish["remove"])
        elif "bandwidth" in wish:
            self._bandwidth.change(wish["bandwidth"])

    def _drop(self, path: str) -> None:
        file = self._queue.drop(path)
        if file is not None:  # whoever has it in hand forgets it
            file.drop()
            return
        # What cannot be forgotten now is named as unfinished at the next start, and dropped again.
        with contextlib.suppress(StokerError):
            self._landing.forget(path)
        self._report("dropped", path=path)

    def _remove(self, path: str) -> None:
        try:
            self._landing.insist()
            self._landing.remove(path)
        except StokerError as error:
            self._report("not_removed", path=path, reason=str(error))
        else:
            self._report("removed", path=path)

    # What the hands do

    def _fetch(self, caller: Caller) -> None:
        while (file := self._queue.take()) is not None:
            try:
                self._try(file, caller)
            except FetchFailed as failure:  # while clearing up after a failure
                self._give_up(file, failure)
            except Exception as error:  # noqa: BLE001 - told as this file's end; the other files go on
                traceback.print_exception(error)
                self._give_up(file, FetchFailed("bug", f"{type(error).__name__}: {error}"))

    def _try(self, file: FileOnItsWay, caller: Caller) -> None:
        try:
            done = file.attempt(caller)
        except Stopped:
            self._stopped(file)
        except FetchFailed as failure:
            self._failed(file, failure)
        else:
            self._queue.remove(file.file.path)
            self._report("done", path=file.file.path, fetched=file.received, **asdict(done))

    def _stopped(self, file: FileOnItsWay) -> None:
        if self._report.stopping:
            file.commit()
            return
        file.forget()
        self._queue.remove(file.file.path)
        self._report("dropped", path=file.file.path)

    def _failed(self, file: FileOnItsWay, failure: FetchFailed) -> None:
        if self._report.stopping or file.dropped:
            self._stopped(file)
            return
        wait_s = next_pause(failure, file.failures, self._task["attempts"], file.backoff.next())
        if wait_s is not None:
            self._report("retry", path=file.file.path, wait_s=round(wait_s, 3), **_told(failure))
            self._queue.put_back(file, wait_s, everywhere=failure.everywhere)
            return
        if failure.kind in COUNTED:
            file.forget()  # its counts too: whoever asks again means it
        self._give_up(file, failure)

    def _give_up(self, file: FileOnItsWay, failure: FetchFailed) -> None:
        file.close()
        self._queue.remove(file.file.path)
        self._report("failed", path=file.file.path, errno=failure.errno, **_told(failure))

    # What keeps it safe

    def _commit(self) -> None:
        while not self._queue.ended:
            self._due.wait(self._task["commit_s"])
            self._due.clear()
            for file in self._queue.in_hand():
                file.commit()

    def _watch(self) -> None:
        now = time.monotonic()
        for caller in self._callers:
            if caller.waiting_s(now) > self._task["head_s"]:
                caller.hang_up()
        if not self._queue.in_hand() and now - self._said >= _ALIVE_EVERY_S:
            self._said = now
            self._report("alive", files=len(self._queue))

    def _part(self, hands: list[threading.Thread]) -> None:
        """End the transfers with everything durable."""
        for file in self._queue.in_hand():
            file.stop()
        for caller in self._callers:
            caller.hang_up()
        deadline = time.monotonic() + _FAREWELL_S
        for hand in hands:
            hand.join(max(0.0, deadline - time.monotonic()))
        for file in self._queue.in_hand():  # of a hand that did not let go
            file.commit()

    def _tell(self, kind: str, **fields: Any) -> None:
        """What a file says of itself."""
        if kind == "due":
            self._due.set()
            return
        if kind == "hashing":
            now = time.monotonic()
            if now - self._heard_hashing < _HASHING_EVERY_S:
                return
            self._heard_hashing = now
        self._report(kind, **fields)


def _told(failure: FetchFailed) -> dict[str, Any]:
    return {"class": failure.kind, "reason": failure.reason, "status": failure.status}


if __name__ == "__main__":
    run_worker(main)
