"""The download watchdog: every source file is here and true, and a receipt says so.

For a folder read in place the way is: look (a lister worker, so that a dead mount hangs it and not us), wait
until a file has stopped changing, hash it (a worker a file), write its receipt, write the listing.
The folder itself is never written.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.corpus.arrivals import Desk, Look, Watched, file_of, vanished, watch
from stoker.corpus.files_list import insist_known
from stoker.corpus.folder import FileSeen
from stoker.corpus.listing import read_listing, write_listing
from stoker.corpus.receipts import Receipt, read_receipts, write_receipt
from stoker.kit.daemon import DaemonContext, daemon_main
from stoker.kit.worker import WorkerExit
from stoker.store.errors import DataError, StorageError, UnavailableError
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import RecordDamaged, set_aside
from stoker.store.requests import Request, finish_request, pending_requests
from stokerd.crew import Crew, Job, Patience
from stokerd.download_board import DownloadBoard
from stokerd.files_list import FILES_LIST, FilesList
from stokerd.source_lister import LISTER, SourceLister
from stokerd.state_trouble import wait_for_state

LOOK_TRIES_ONCE = 3
HASH_TRIES_ONCE = 5
LONGEST_WAIT_S = 5.0
SHOW_EVERY_S = 0.25


def main() -> int:
    """The command `stoker-download-watchdog FILE [--once] [--files-list LIST]`."""
    return daemon_main(DOWNLOAD_WATCHDOG, story, sys.argv[1:], [FILES_LIST])


def story(context: DaemonContext) -> int:
    """Watch the source until asked to stop; with --once until every file has its receipt."""
    return FolderWatch(context).run()


class FolderWatch:
    """One source folder and what is known of it."""

    def __init__(self, context: DaemonContext) -> None:
        self.context = context
        self.layout, self.events = context.layout, context.events
        self.pipeline = context.pipeline
        self.dataset = self.pipeline.dataset.name
        self.root = str(self.pipeline.dataset.source.path)
        self.crew = Crew(f"{self.layout.state}:{DOWNLOAD_WATCHDOG}", context.waiter)
        self.patience = Patience()
        self.lister = SourceLister(self.pipeline, self.crew, self.patience)
        self.board = DownloadBoard(context, self.root)
        self.files = FilesList(context)

        self.receipts = read_receipts(self.layout, self.dataset, self._set_aside)
        self.listing = read_listing(self.layout, self.dataset)
        self.watched: dict[str, Watched] = {}
        self.meant: Mapping[str, Watched] = {}  # those within dataset.limit
        self.open: dict[str, Watched] = {}  # those of them that no receipt vouches for
        self.listing_due = False  # something happened that the listing may have to tell
        self.shown_at, self.unshown = -math.inf, False  # when the board was last told, and whether it is due
        self.whole = False  # the last look saw everything there is
        self.trouble = ""  # why the folder cannot be seen now
        self.polling: str | None = None  # why nobody tells of changes in it; None before the first look
        self.confirmed = False  # a look after the last hash found nothing new
        self.told: set[tuple[str, str]] = set()  # what an event was already written about

    def run(self) -> int:
        """The loop; returns the exit code."""
        self.crew.end_leftovers()
        self.context.waiter.watch(self.layout.requests(DOWNLOAD_WATCHDOG))
        self.context.ready(f"looking at {self.root}")
        try:
            while not self.context.stopping:
                try:
                    if self.turn():
                        return self.farewell()
                except StorageError as problem:
                    wait_for_state(self.context, problem)
        finally:
            self.crew.stop()
        return 0

    def turn(self) -> bool:
        """Answer, look, hash, tell, wait, hear; True when --once has nothing left to do."""
        self.answer_requests()
        self.lister.ask_if_due()
        self.hash_what_settled()
        self.keep_listing()
        self.tell()
        if self.context.once and self.is_drained():
            return True
        self.wait()
        self.hear_workers()
        return False

    # Requests

    def answer_requests(self) -> None:
        """Take what others ask; the only verb is `dispute`: this content was found wrong, look again."""
        for request in pending_requests(self.layout, DOWNLOAD_WATCHDOG):
            outcome = self._dispute(request) if request.verb == "dispute" else {"refused": "unknown verb"}
            finish_request(self.layout, DOWNLOAD_WATCHDOG, request, outcome)

    def _dispute(self, request: Request) -> dict[str, Any]:
        path = str(request.args.get("path"))
        receipt = self.receipts.get(path)
        if receipt is None:
            return {"refused": f"no receipt for {path}"}
        if receipt.sha256 != request.args.get("sha256"):
            return {"receipt": receipt.state, "sha256": receipt.sha256}  # looked at again since it was read
        if receipt.state != "disputed":
            self._write(replace(receipt, state="disputed"))
            self.events.record("receipt_disputed", level="warning", path=path, by=request.by)
        return {"receipt": "disputed"}

    # Looking

    def take_look(self, look: Look) -> None:
        """A look is over: what changed, what vanished, what was refused."""
        for path, reason in look.refused:
            self._tell_once("source_refused", path, reason)
        for path, reason in look.unreadable:
            self._tell_once("source_unreadable", path or self.root, reason)
        self.take_trouble(look.trouble(self.root, len(self.receipts)))
        if self.trouble:
            return
        self.take_polling(look.polling)
        before, self.watched = self.watched, watch(self.watched, look.files, time.monotonic())
        self.find_open()
        self.confirmed = self.watched == before
        self.whole = not look.unreadable
        self.check_files_list()
        self.told -= {("source_vanished", path) for path in self.watched}
        for path in vanished(self.watched, self.receipts) if self.whole else ():
            self._tell_once("source_vanished", path, "its receipt is kept")

    def take_polling(self, polling: str) -> None:
        """Say once how changes in the folder are noticed, where it is not by being told."""
        if polling and polling != self.polling:
            every_s = round(self.lister.every_s, 1)
            self.events.record("source_polled", path=self.root, reason=polling, every_s=every_s)
        elif self.polling and not polling:
            self.events.record("source_watched", path=self.root)
        self.polling = polling

    def take_trouble(self, trouble: str) -> None:
        """Say once that the folder cannot be seen, and once that it can again; --once gives up."""
        if trouble and self.context.once:
            raise UnavailableError(trouble)
        if trouble and trouble != self.trouble:
            self.events.record("source_unavailable", level="warning", reason=trouble)
        elif self.trouble and not trouble:
            self.events.record("source_available", path=self.root)
        self.trouble = trouble

    def lister_ended(self, ended: WorkerExit) -> None:
        """The lister died or hung: another is started after a while."""
        self.patience.failed(LISTER)
        self.events.record("lister_failed", level="warning", path=self.root, reason=ended.reason())
        if self.context.once and self.patience.failures(LISTER) >= LOOK_TRIES_ONCE:
            raise UnavailableError(
                f"the source folder {self.root} cannot be looked at ({ended.reason()}); is its mount alive?"
            )

    def check_files_list(self) -> None:
        """Refuse a list of files that are not here; while we stay they may yet come, and are named once."""
        if self.files.names is None or not self.whole:
            return
        try:
            insist_known(self.files.names, self.watched, f"the source folder {self.root}")
        except DataError as error:
            if self.context.once:
                raise
            self._tell_once("files_list_unknown", self.root, str(error))

    # Hashing

    def desk(self, files: Mapping[str, Watched] | None = None) -> Desk:
        """What the decisions about hashing are made from, by default about the open files alone."""
        return Desk(
            watched=self.open if files is None else files,
            receipts=self.receipts,
            hashing=self.crew.busy.keys() - {LISTER},
            not_before=self.patience.not_before,
            slots=self.pipeline.download.files_at_once,
            settle_s=0.0 if self.context.once else self.pipeline.stage.settle,
            root=self.root,
            only=self.files.names,
        )

    def find_open(self) -> None:
        """Know anew which files are to be hashed: with fifty thousand that is not done every turn."""
        most = self.pipeline.dataset.limit.files
        self.meant = self.watched if most is None else dict(islice(self.watched.items(), most))
        desk = self.desk(self.meant)
        self.open = {path: each for path, each in self.meant.items() if not desk.vouched(each.file)}
        self.listing_due = True

    def hash_what_settled(self) -> None:
        """Start hashing the files that stopped changing, as many at once as download.files_at_once."""
        if self.trouble:
            return
        quiet_s = self.pipeline.download.stall
        for file in self.desk().next_to_hash(time.monotonic()):
            if self._given_up(file.path):
                continue
            task = {
                "root": self.root,
                "path": file.path,
                "size": file.size,
                "mtime_ns": file.mtime_ns,
                "inode": file.inode,
            }
            job = self.crew.start("hash", file.path, "stoker.corpus.hash_worker", task, quiet_s=quiet_s)
            job.note["file"] = file

    def hash_ended(self, job: Job, ended: WorkerExit) -> None:
        """A file was hashed, or not: then it is tried again."""
        file: FileSeen = job.note["file"]
        self.confirmed = False
        result = ended.result or {}
        if result.get("status") == "hashed":
            self.patience.succeeded(file.path)
            self.board.hashed(file.size)
            self._vouch(file, result["sha256"], cached=bool(result["cached"]))
            return
        wait_s = self.patience.failed(file.path)
        if result:  # changed or missing: it was not quiet after all
            self.watched[file.path] = Watched(file, time.monotonic())
            self.find_open()
            self.lister.ask_soon()
            return
        self.events.record(
            "hash_failed", level="warning", path=file.path, reason=ended.reason(), retry_in_s=round(wait_s, 1)
        )

    def _vouch(self, file: FileSeen, sha256: str, *, cached: bool) -> None:
        before = self.receipts.get(file.path)
        receipt = Receipt(
            dataset=self.dataset,
            path=file.path,
            file=file_of(self.root, file.path),
            size=file.size,
            sha256=sha256,
            revision="",
            etag=file.etag,
            state="verified",
        )
        self._write(receipt)
        if before is None:
            self.events.record("file_verified", path=file.path, size=file.size, sha256=sha256, cached=cached)
        elif before.sha256 == sha256:
            self.events.record("file_reverified", path=file.path, sha256=sha256, cached=cached)
        else:
            self.events.record(
                "source_changed", level="warning", path=file.path, sha256=sha256, before=before.sha256
            )

    # Books

    def keep_listing(self) -> None:
        """Write the listing when it changed; an unseen folder changes nothing."""
        if not self.lister.looks or self.trouble:
            return
        if not self.listing_due:
            return
        self.listing_due = False
        listing = self.desk(self.meant).listing(self.dataset, self.whole)
        if listing != self.listing:
            write_listing(self.layout, listing)
            self.listing = listing
            if listing.complete:
                self.events.record("listing_complete", files=len(listing.files))

    def _write(self, receipt: Receipt) -> None:
        write_receipt(self.layout, receipt)
        self.receipts[receipt.path] = receipt
        watched = self.meant.get(receipt.path)
        if watched is not None and self.desk().vouched(watched.file):
            self.open.pop(receipt.path, None)
            self.listing_due = self.listing_due or not self.open
        else:
            self.find_open()

    def _set_aside(self, file: Path, error: RecordDamaged) -> None:
        # Its file is hashed again: without a receipt it is as good as new.
        place = set_aside(file, self.layout.quarantine, "damaged", str(error))
        self.events.record("record_damaged", level="error", path=str(file), moved_to=str(place))

    def _tell_once(self, event: str, path: str, reason: str) -> None:
        if (event, path) not in self.told:
            self.told.add((event, path))
            self.events.record(event, level="warning", path=path, reason=reason)

    # Hearing, telling, waiting, ending

    def hear_workers(self) -> None:
        """Take in what the workers said and how they ended."""
        for job, messages, ended in self.crew.hear():
            for message in messages:
                if job.subject != LISTER:
                    self.board.progressed()
                elif (look := self.lister.hear(message)) is not None:
                    self.take_look(look)
            if ended is not None and job.subject == LISTER:
                self.lister_ended(ended)
            elif ended is not None:
                self.hash_ended(job, ended)

    def tell(self) -> None:
        """Status, metrics and the service manager's watchdog, all from one snapshot."""
        now = time.monotonic()
        self.unshown = now < self.shown_at + SHOW_EVERY_S
        if self.unshown:
            return
        self.shown_at = now
        self.board.show(self.counts(), self.receipts, self.listing, self.trouble, self.polling)

    def counts(self) -> dict[str, int]:
        """How many files are in which state."""
        counts = self.desk().counts(time.monotonic())
        return {**counts, "verified": counts["verified"] + len(self.meant) - len(self.open)}

    def wait(self) -> None:
        """Sleep until a worker, a request or a signal has something, or something falls due."""
        now = time.monotonic()
        due = [now + LONGEST_WAIT_S, self.lister.next_due(now)]
        due.append(self.shown_at + SHOW_EVERY_S if self.unshown else self.context.show_due)
        if (settling := self.desk().next_due(now)) is not None:
            due.append(settling)
        self.context.waiter.wait(max(0.0, min(due) - now))

    def _given_up(self, path: str) -> bool:
        return self.context.once and self.patience.failures(path) >= HASH_TRIES_ONCE

    def is_drained(self) -> bool:
        """Whether every file has its receipt or was tried often enough, and a last look found nothing new."""
        if not self.lister.looks or self.crew.busy.keys() - {LISTER}:
            return False
        if any(not self._given_up(file.path) for file in self.desk().waiting(time.monotonic())):
            return False
        if not self.confirmed:
            self.lister.ask_soon()
        return self.confirmed

    def farewell(self) -> int:
        """The last line of --once."""
        verified = self.counts()["verified"]
        left = sum(1 for path in self.open if self.files.takes(path))
        still = f", {left} left: they kept changing or could not be read" if left else ""
        self.context.log.info("drained", message=f"{verified} files verified{still}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
