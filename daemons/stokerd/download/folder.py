"""A folder read in place: wait until a file has stopped changing, hash it (in a worker), vouch for it.

The folder itself is never written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.records.by_path import first
from stoker.corpus.records.files_list import insist_known
from stoker.corpus.records.listing_writer import ListingBook, ListingHead
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.source.arrivals import Desk, Look, Unproven, Watched, file_of, is_rot, vanished, watch
from stoker.corpus.source.folder import FileSeen
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.store.errors import ConfigError, DataError, UnavailableError
from stokerd.download.folder_lister import LISTER, SourceLister
from stokerd.download.folder_news import FolderNews
from stokerd.download.hashing_rate import HashingPace
from stokerd.download.source_kind import Desktop, some

LOOK_TRIES_ONCE = 3
HASH_TRIES_ONCE = 5
SHOW_EVERY_S = 0.25
HASHER = "stoker.corpus.source.hash_worker"
_READ_IN_PLACE = "the source is a folder, which is read in place and never written"


class FolderSource:
    """One source folder and what is known of it."""

    every_s = SHOW_EVERY_S

    def __init__(self, tools: Desktop) -> None:
        self.context, self.crew, self.patience = tools.context, tools.crew, tools.patience
        self.book, self.board, self.files = tools.book, tools.board, tools.files
        self.pipeline, self.events = self.context.pipeline, self.context.events
        self.dataset = self.pipeline.dataset.name
        self.root = self.shown = str(self.pipeline.dataset.source.path)
        self.lister = SourceLister(self.pipeline, self.crew, self.patience)
        self.book.on_write = self._written
        self.settle_s = 0.0 if self.context.once else self.pipeline.stage.settle

        self.kept = ListingBook(self.context.layout, self.dataset)
        self.watched: dict[str, Watched] = {}
        self.meant: Mapping[str, Watched] = self.watched  # those within dataset.limit
        self.open = Unproven()  # those of them that no receipt vouches for
        self.bytes = 0  # of those within dataset.limit
        self.pace = HashingPace()
        self.listing_due = False  # something happened that the listing may have to tell
        self.whole = False  # the last look saw everything there is
        self.news = FolderNews(self.context, self.root)
        self.confirmed = False  # a look after the last hash found nothing new

    @property
    def listing(self) -> ListingHead | None:
        """What was written of it."""
        return self.kept.head

    @property
    def seen(self) -> bool:
        """Whether the folder was looked at since our start."""
        return self.lister.looks > 0

    @property
    def trouble(self) -> str:
        """Why the folder cannot be seen now."""
        return self.news.trouble

    # Looking

    def look(self) -> None:
        """Keep the lister at work."""
        self.lister.ask_if_due()
        self.news.remind()

    def take_look(self, look: Look) -> None:
        """A look is over: what changed, what vanished, what was refused."""
        receipts = self.book.receipts
        for path, reason in look.refused:
            self.book.tell_once("source_refused", path, reason)
        for path, reason in look.unreadable:
            self.book.tell_once("source_unreadable", path or self.root, reason)
        if not self.news.take(look, len(receipts), self.lister.every_s):
            return
        before, self.watched = self.watched, watch(self.watched, look.files.values(), time.monotonic())
        self.confirmed = self.watched == before
        whole, self.whole = self.whole, not look.unreadable
        if not self.confirmed or self.lister.looks == 1 or whole != self.whole:
            self.find_open()
        self.check_files_list()
        self.book.came_back("source_vanished", self.watched.__contains__)
        for path in vanished(self.watched, receipts) if self.whole else ():
            self.book.tell_once("source_vanished", path, "its receipt is kept")

    def lister_ended(self, ended: WorkerExit) -> None:
        """The lister died or hung, and another starts later; ConfigError where it refuses the folder."""
        if ended.code == ConfigError.exit_code:
            raise ConfigError(ended.reason())
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
            self.book.tell_once("files_list_unknown", self.root, str(error))

    # Hashing

    def desk(self, files: Mapping[str, Watched] | None = None) -> Desk:
        """What the decisions about hashing are made from, by default about the open files alone."""
        return Desk(
            watched=self.open if files is None else files,
            receipts=self.book.receipts,
            hashing=self.crew.busy.keys() - {LISTER},
            not_before=self.patience.not_before,
            slots=self.pipeline.download.files_at_once,
            settle_s=self.settle_s,
            root=self.root,
            only=self.files.names,
        )

    def find_open(self) -> None:
        """Know anew which files are to be hashed: with fifty thousand that is not done every turn."""
        most = self.pipeline.dataset.limit.files
        self.meant = first(self.watched, most)
        desk = self.desk(self.meant)
        unproven = ((path, each) for path, each in self.meant.items() if not desk.vouched(each.file))
        self.open = Unproven(unproven)
        self.bytes = sum(each.file.size for _, each in self.meant.items())
        self.listing_due = True

    def bring(self) -> None:
        """Start hashing the files that stopped changing, as many at once as download.files_at_once."""
        now = time.monotonic()
        hashing = len(self.crew.busy.keys() - {LISTER})
        if self.trouble or self.open.settled(now, self.settle_s) <= hashing:
            return
        quiet_s = self.pipeline.download.stall
        for file in self.desk().next_to_hash(now):
            if self._given_up(file.path):
                continue
            task = {
                "root": self.root,
                "path": file.path,
                "size": file.size,
                "mtime_ns": file.mtime_ns,
                "inode": file.inode,
            }
            self.crew.start(Activity("hash", HASHER, quiet_s, is_reusable=True), file.path, task, file)
            self.pace.began(file.path)

    def hash_ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """A file was hashed, or not: then it is tried again."""
        file: FileSeen = job.facts
        self.confirmed = False
        result = ended.result or {}
        self.pace.ended(file.path, file.size if result.get("status") == "hashed" else 0)
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
        before = self.book.receipts.get(file.path)
        if before is not None and is_rot(before, file, sha256):
            self._tell_rot(before, sha256, cached=cached)
            return
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
        self.book.write(receipt)
        if before is None:
            self.events.record("file_verified", path=file.path, size=file.size, sha256=sha256, cached=cached)
        elif before.sha256 == sha256:
            self.events.record("file_reverified", path=file.path, sha256=sha256, cached=cached)
        else:
            self.events.record(
                "source_changed", level="warning", path=file.path, sha256=sha256, before=before.sha256
            )

    def _tell_rot(self, receipt: Receipt, sha256: str, *, cached: bool) -> None:
        path = receipt.path
        self.book.write(replace(receipt, file=file_of(self.root, path), state="disputed", found=sha256))
        self.events.record(
            "source_rotten",
            level="error",
            path=path,
            sha256=sha256,
            before=receipt.sha256,
            cached=cached,
            reason="its content changed, its size, time and inode did not; nothing is built of it: put a "
            f"good copy in its place, or take it as it is with stoker verify downloads --accept {path}",
        )

    def rotten(self) -> list[str]:
        """The files that are rotten now."""
        return [
            path for path in self.book.in_state("disputed") if path in self.meant and path not in self.open
        ]

    # Books

    def keep_listing(self) -> None:
        """Write the listing when it changed; an unseen folder changes nothing."""
        if not self.seen or self.trouble:
            return
        if not self.listing_due:
            return
        self.listing_due = False
        complete = not self.open and self.desk(self.meant).complete(self.whole)
        files = ((path, each.file.size) for path, each in self.meant.items())
        if self.kept.write(files, complete=complete, revision="") and complete:
            self.events.record("listing_complete", files=len(self.meant))

    def _written(self, receipt: Receipt) -> None:
        watched = self.meant.get(receipt.path)
        if watched is not None and self.desk().vouched(watched.file):
            self.open.drop(receipt.path)
            self.listing_due = self.listing_due or not self.open
        else:
            self.find_open()

    # What is asked

    def release(self, path: str, _sha256: str, _owner: str) -> dict[str, Any]:
        """Nothing is ever removed here."""
        return {"refused": f"{path}: {_READ_IN_PLACE}"}

    def fetch(self, path: str, _sha256: str | None, by: str) -> dict[str, Any]:
        """Look at a file again that is here."""
        receipt = self.book.receipts.get(path)
        if path not in self.watched:
            return {"refused": f"{path} is not in {self.root}; put it there"}
        if receipt is not None:
            self.book.dispute(receipt, by)
        return {"receipt": "disputed"}

    # Hearing and telling

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """The lister's words make a look, the others' are progress."""
        if job.subject != LISTER:
            self.pace.heard(job.subject, message)
            self.board.progressed()
        elif (look := self.lister.hear(message)) is not None:
            self.take_look(look)

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """A worker ended."""
        if job.subject == LISTER:
            self.lister_ended(ended)
        else:
            self.hash_ended(job, ended)

    def counts(self) -> dict[str, int]:
        """How many files are in which state."""
        disputed = self.book.in_state("disputed")
        counts = self.open.counts(time.monotonic(), self.settle_s, self.crew.busy, disputed)
        rotten = len(self.rotten())
        return {**counts, "verified": len(self.meant) - len(self.open) - rotten, "rotten": rotten}

    def status(self) -> dict[str, Any]:
        """How far the hashing is and what it waits for; why changes are not told of; files others left."""
        return {
            **self.pace.shown(self.bytes, self.open.bytes),
            "waits": self._waits(time.monotonic()),
            "polling": self.news.polling or "",
            "foreign_files": self.news.foreign,
        }

    def _waits(self, now: float) -> str:
        settled = self.open.settled(now, self.settle_s)
        if settled or self.trouble:  # something is to be hashed now
            return ""
        return self.news.waits(len(self.open), self.open.next_settling(now, self.settle_s), now)

    def next_due(self, now: float) -> float:
        """The next look, or when a file has settled or may be tried again; none while no slot is free."""
        due = [self.lister.next_due(now)]
        if len(self.crew.busy.keys() - {LISTER}) < self.pipeline.download.files_at_once:
            settles = self.open.next_settling(now, self.settle_s)
            tried = (moment for path, moment in self.patience.not_before.items() if path in self.open)
            due += [moment for moment in (settles, *tried) if moment is not None and moment > now]
        return min(due)

    # Ending

    def _given_up(self, path: str) -> bool:
        return self.context.once and self.patience.failures(path) >= HASH_TRIES_ONCE

    def is_drained(self) -> bool:
        """Whether every file has its receipt or was tried often enough, and a last look found nothing new."""
        if not self.seen or self.crew.busy.keys() - {LISTER}:
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
        rotten = self.rotten()
        rot = f", {len(rotten)} rotten: {some(rotten)}; stoker audit says what to do" if rotten else ""
        self.context.log.info("drained", message=f"{verified} files verified{still}{rot}")
        return 1 if rotten else 0
