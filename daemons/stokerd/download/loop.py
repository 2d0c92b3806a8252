"""The download watchdog: every source file is here and true, and a receipt says so.

It looks what the source holds (in a worker, so that a dead mount or a silent server hangs that and not us),
brings what no receipt vouches for, and writes receipts and the listing. A folder is read in place and never
written; what lies on a hub or at URLs is fetched into the landing.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerNotStarted
from stoker.kit.workers.pool import WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.store.errors import StokerError, StorageError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import Request
from stokerd.common.files_list import FilesList
from stokerd.common.request_box import RequestBox
from stokerd.common.storage_wait import wait_for_processes, wait_for_state
from stokerd.download.folder import FolderSource
from stokerd.download.receipt_store import ReceiptBook
from stokerd.download.remote import FetchedSource
from stokerd.download.source_kind import Desktop, SourceKind
from stokerd.download.status import DownloadBoard

LONGEST_WAIT_S = 5.0
EX_TEMPFAIL = 75


def story(context: DaemonContext) -> int:
    """Watch the source until asked to stop; with --once until every file has its receipt."""
    return DownloadWatch(context).run()


class DownloadWatch:
    """The loop around one source."""

    def __init__(self, context: DaemonContext) -> None:
        self.context = context
        self.layout, self.events = context.layout, context.events
        self.crew = WorkerPool[Any](f"{self.layout.state}:{DOWNLOAD_WATCHDOG}", context.waiter)
        self.box = RequestBox(self.layout, DOWNLOAD_WATCHDOG, self.events)
        self.book = ReceiptBook(context)
        self.board = DownloadBoard(context)
        tools = Desktop(context, self.crew, Retries(), self.book, self.board, FilesList(context))
        is_folder = context.pipeline.dataset.source.kind == "folder"
        self.source: SourceKind = FolderSource(tools) if is_folder else FetchedSource(tools)
        self.shown_at, self.unshown = -math.inf, False  # when the board was last told, and whether it is due

    def run(self) -> int:
        """The loop; returns the exit code."""
        self.crew.end_leftovers()
        self.context.waiter.watch(self.layout.requests(DOWNLOAD_WATCHDOG))
        self.context.ready(f"looking at {self.source.shown}")
        try:
            while not self.context.stopping:
                try:
                    if self.turn():
                        return self.end()
                except StorageError as problem:
                    wait_for_state(self.context, problem)
                except WorkerNotStarted as problem:
                    wait_for_processes(self.context, problem)
        except StokerError:  # which ends us: how far it came, and why it does not go on, stays to be seen
            self.board.show(self.source, self.book)
            raise
        finally:
            self.context.log.footer.clear()
            self.crew.stop()
        return self.stopped()

    def turn(self) -> bool:
        """Answer, look, bring, tell, wait, hear; True when --once has nothing left to do."""
        self.answer_requests()
        self.source.look()
        self.source.bring()
        self.source.keep_listing()
        self.tell()
        if self.context.once and self.source.is_drained():
            return True
        self.wait()
        self.hear_workers()
        return False

    def stopped(self) -> int:
        """The exit code after a stop; --once was to bring everything, and has not."""
        self.board.show(self.source, self.book)
        if not self.context.once:
            return 0
        self.context.log.info("interrupted", message="not everything is here; start it again and it goes on")
        return EX_TEMPFAIL

    def end(self) -> int:
        """The last word of --once, and its exit code."""
        self.source.keep_listing()
        self.board.show(self.source, self.book)
        self.context.log.footer.clear()
        return self.source.farewell()

    # Requests

    def answer_requests(self) -> None:
        """Take what others ask about a path."""
        for request in self.box.read():
            self.box.finish(request, self._answer(request))

    def _answer(self, request: Request) -> dict[str, Any]:
        path, sha256 = str(request.args.get("path")), request.args.get("sha256")
        if request.verb == "dispute":
            return self._dispute(path, sha256, request.by)
        if request.verb == "accept":
            return self._accept(path, sha256, request.by)
        if request.verb == "release":
            return self.source.release(path, str(sha256), str(request.args.get("owner") or path))
        if request.verb == "fetch":
            return self.source.fetch(path, None if sha256 is None else str(sha256), request.by)
        return {"refused": "unknown verb"}

    def _dispute(self, path: str, sha256: Any, by: str) -> dict[str, Any]:
        """This content was found wrong: look again."""
        receipt = self.book.receipts.get(path)
        if receipt is None:
            return {"refused": f"no receipt for {path}"}
        if receipt.sha256 != sha256 or not (receipt.usable or receipt.state == "disputed"):
            return {"receipt": receipt.state, "sha256": receipt.sha256}  # looked at again since, or not here
        self.book.dispute(receipt, by)
        return {"receipt": "disputed"}

    def _accept(self, path: str, sha256: Any, by: str) -> dict[str, Any]:
        """Somebody takes a rotten file as it is."""
        receipt = self.book.receipts.get(path)
        if receipt is None or not receipt.rotten or receipt.found != sha256:
            return {"refused": f"{path} is not rotten with that content"}
        self.book.write(replace(receipt, state="verified", sha256=receipt.found, found=""))
        self.events.record(
            "source_changed", level="warning", path=path, sha256=sha256, before=receipt.sha256, by=by
        )
        return {"receipt": "verified"}

    # Hearing, telling, waiting

    def hear_workers(self) -> None:
        """Take in what the workers said and how they ended."""
        for job, messages, ended in self.crew.hear():
            for message in messages:
                self.source.hear(job, message)
            if ended is not None:
                self.source.ended(job, ended)

    def tell(self) -> None:
        """Status, metrics and the service manager's watchdog, all from one snapshot."""
        now = time.monotonic()
        self.unshown = now < self.shown_at + self.source.every_s
        if self.unshown:
            return
        self.shown_at = now
        self.board.show(self.source, self.book)

    def wait(self) -> None:
        """Sleep until a worker, a request or a signal has something, or something falls due."""
        now = time.monotonic()
        due = [now + LONGEST_WAIT_S, self.source.next_due(now)]
        due.append(self.shown_at + self.source.every_s if self.unshown else self.context.show_due)
        self.context.waiter.wait(max(0.0, min(due) - now))
