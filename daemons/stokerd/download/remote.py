"""A source that is fetched into the landing: a repository on a hub, or a list of URLs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.corpus.fetch.selection import (
    WantDesk,
    Wanted,
    is_complete,
    landed_before,
    next_step,
    speaks_of,
    wanted_again,
)
from stoker.corpus.http.retry_rules import LOCAL
from stoker.corpus.records.by_path import first
from stoker.corpus.records.files_list import insist_known
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.listing_writer import ListingHead
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.source.arrivals import file_of
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job
from stoker.store.errors import DataError
from stokerd.download.failures import FetchOutcomes
from stokerd.download.fetch_view import Figures
from stokerd.download.fetched_receipts import given_up, verified
from stokerd.download.fetcher import FETCHER, Fetcher, Wish
from stokerd.download.limit_ahead import SliceAhead
from stokerd.download.listing import ListingKeeper
from stokerd.download.listing_changes import ListingNews
from stokerd.download.remote_lister import LISTER, Listed, RemoteLister
from stokerd.download.requests import FetchRequests
from stokerd.download.source_kind import Desktop, some

SHOWN_FILES = 20
SHOW_EVERY_S = 0.5


class FetchedSource:
    """What is listed, what of it is here, and the one worker that brings the rest."""

    every_s = SHOW_EVERY_S

    def __init__(self, tools: Desktop) -> None:
        self.context, self.book, self.files = tools.context, tools.book, tools.files
        self.pipeline, self.events, self.patience = self.context.pipeline, self.context.events, tools.patience
        self.dataset = self.pipeline.dataset.name
        self.root = str(self.pipeline.source_root)
        self.kept = ListingKeeper(tools)
        self.lister = RemoteLister(self.pipeline, tools.crew, tools.patience)
        self.shown, self.repo = self.lister.shown, self.lister.repo
        if self.listing is not None and self.listing.origin == self.lister.origin:
            self.lister.pinned = self.listing.revision or None
        self.news = ListingNews(tools, self.lister)
        self.fetcher = Fetcher(tools, self.pipeline.source_root, self.repo)
        self.outcomes = FetchOutcomes(tools, self.fetcher, self.lister)
        self.requests = FetchRequests(tools, self.outcomes, self.lister)
        self.ahead = SliceAhead(self.pipeline)
        self.book.on_write = self._written

        self.wanted: Mapping[str, Wanted] = {}  # all that is listed, within dataset.limit.files
        self.revision = ""
        self.meant: Mapping[str, Wanted] = self.wanted  # those of them that are to be here now
        self.again: dict[str, Wanted] = {}  # not listed any more, but asked for
        self.open: dict[str, Wanted] = {}  # those that something is to be done about
        self.releasing = set(self.book.in_state("releasing"))
        self.changes = 0  # of what is wanted
        self.figures = Figures()

    @property
    def listing(self) -> ListingHead | None:
        """What was written of it."""
        return self.kept.head

    @property
    def seen(self) -> bool:
        """Whether the source was listed since our start."""
        return self.lister.known is not None

    @property
    def trouble(self) -> str:
        """Why the source or the landing cannot be used now."""
        return self.outcomes.trouble or self.news.trouble

    # Looking

    def look(self) -> None:
        """Have it listed when that is due, and see how far the slice was counted."""
        self.lister.ask_if_due()
        self.news.remind()
        if self.ahead.bounded and self.ahead.moved(self._as_listing() if self.seen else None):
            self.find_open()

    def take_listing(self, listed: Listed) -> None:
        """A listing came: what is new in it, what is gone."""
        before = self.revision or (self.listing.revision if self.listing else "")
        self.wanted = first(listed.files, self.pipeline.dataset.limit.files)
        self.revision, self.kept.changed = listed.revision, True
        self.check_files_list()
        if self.ahead.bounded:
            self.ahead.moved(self._as_listing())
        self.find_open()
        for path, wish in self.fetcher.sent.items():
            if (wanted := self.open.get(path)) is None or wanted.identity != wish.wanted.identity:
                self.fetcher.drop(path)
        if listed.revision != before:
            self.outcomes.listed_anew()
        self.news.tell_vanished(self.wanted, self.book.receipts)

    def check_files_list(self) -> None:
        """Refuse a list of files that are not listed; while we stay they may yet come, and are named once."""
        if self.files.names is None:
            return
        try:
            insist_known(self.files.names, self.wanted, f"the listing of {self.shown}")
        except DataError as error:
            if self.context.once:
                raise
            self.book.tell_once("files_list_unknown", self.shown, str(error))

    def find_open(self) -> None:
        """Know anew what is to be done: with fifty thousand files that is not asked every turn."""
        stretch = self.ahead.stretch if self.ahead.bounded else None
        self.meant = self.wanted
        if self.ahead.bounded:
            paths = frozenset() if stretch is None else stretch.paths
            self.meant = {path: each for path, each in self.wanted.items() if path in paths}
        self.changes += 1
        self.open = {path: each for path, each in self.meant.items() if self._step(each)}
        for path, each in self.again.items():
            if path not in self.wanted and self._step(each):
                self.open[path] = each
        self.kept.due = True

    def _step(self, wanted: Wanted) -> str:
        receipt = self.book.receipts.get(wanted.path)
        return next_step(receipt, wanted, file_of(self.root, wanted.path))

    # Bringing

    def bring(self) -> None:
        """Finish what is being released, then fetch what is not here, as much as may be."""
        self.fetcher.look_after()
        now = time.monotonic()
        if due := [path for path in self.releasing if path not in self.fetcher.removing]:
            if not self.outcomes.may_remove(now) or not self.fetcher.start_if_needed(self._has_landed):
                return
            for path in due:
                self.fetcher.remove(path)
        if not self.seen and not self.again:
            return
        for wanted in self.desk().next_files(now):
            if self._begin(wanted):
                return

    def _begin(self, wanted: Wanted) -> bool:
        """Do a file's next step; True when nothing more may be begun."""
        receipt = self.book.receipts.get(wanted.path)
        step = self._step(wanted)
        if step == "release" and receipt is not None:
            self.events.record(
                "source_changed", path=wanted.path, before=receipt.sha256, reason="listed anew"
            )
            self.book.write(replace(receipt, state="releasing"))
        elif step == "bring" and wanted.path not in self.fetcher.removing:
            if not self.fetcher.start_if_needed(self._has_landed):
                return True
            of_old = None if receipt is None or wanted.path in self.wanted else receipt.revision
            revision = self.revision if of_old is None else of_old
            self.fetcher.fetch(wanted, revision, landed_before(receipt, wanted))
        return False

    def _has_landed(self) -> bool:
        """Whether the landing must be there: a missing one is an unmounted disk then."""
        here = file_of(self.root, "")
        return any(
            (each.usable or each.state == "releasing") and each.file.startswith(here)
            for each in self.book.receipts.values()
        )

    def desk(self) -> WantDesk:
        """What the choice of the next files is made from."""
        slots = self.outcomes.slots(self.fetcher.slots, len(self.fetcher.sent), time.monotonic())
        return WantDesk(
            open=self.open,
            receipts=self.book.receipts,
            busy=self.fetcher.sent,
            not_before=self.patience.not_before,
            slots=slots,
            only=self.files.names,
        )

    # Hearing

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """Take a worker's word."""
        if job.subject == LISTER:
            self.lister.hear(message)
            return
        path, kind = str(message.get("path")), message["kind"]
        wish = self.fetcher.sent.get(path)
        self.fetcher.hear(message)
        if kind == "done" and wish is not None:
            self.outcomes.went_well(path)
            self._vouch(wish, message)
        elif kind == "failed" and wish is not None:
            self._failed(wish, message)
        elif kind == "progress":
            self.outcomes.went_well("")
        elif kind == "ready":
            self.outcomes.fetcher_is_ready()
        elif kind == "removed":
            self._removed(path)
        elif kind == "not_removed":
            self.outcomes.not_removed(path, str(message["reason"]))

    def ended(self, job: Job[Any], ended: WorkerExit) -> None:
        """A worker's end."""
        if job.subject == FETCHER:
            self.outcomes.fetcher_ended(ended)
        elif (found := self.lister.ended(ended)) is not None and (
            listed := self.news.take(found)
        ) is not None:
            self.take_listing(listed)

    def _vouch(self, wish: Wish, done: Mapping[str, Any]) -> None:
        """For the content that was asked for: if another is listed since, this one is known to be old."""
        path = wish.wanted.path
        before = self.book.receipts.get(path)
        receipt = verified(self.dataset, file_of(self.root, path), self._of_repo(wish), done)
        self.book.write(receipt)
        word = "file_reverified" if before and before.sha256 == receipt.sha256 else "file_verified"
        told = {"size": receipt.size, "sha256": receipt.sha256, "how": done["how"], "cached": done["cached"]}
        if receipt.state == "unproven":
            told["reason"] = (
                "it came without a length, and no sum is listed: nothing tells whether it is whole"
            )
            self.events.record("file_unproven", level="warning", path=path, **told)
            return
        self.events.record(word, path=path, **told)

    def _of_repo(self, wish: Wish) -> Wish:
        """A list of URLs has a revision, its files have none."""
        return wish if self.repo is not None else replace(wish, revision="")

    def _failed(self, wish: Wish, message: Mapping[str, Any]) -> None:
        path = wish.wanted.path
        asked, wanted = wish.wanted, self.meant.get(path) or self.again.get(path)
        stale = wanted is not None and (wanted.identity, wanted.url) != (asked.identity, asked.url)
        if (stale and message["class"] not in LOCAL) or self.outcomes.failed(path, message):
            return
        receipt = self.book.receipts.get(path)
        if wanted is None or (receipt and receipt.state == "given_up" and speaks_of(receipt, wanted)):
            return
        self.book.write(given_up(self.dataset, file_of(self.root, path), self._of_repo(wish)))

    def _removed(self, path: str) -> None:
        self.outcomes.removed()
        receipt = self.book.receipts.get(path)
        if receipt is not None and receipt.state == "releasing":
            self.book.write(replace(receipt, state="released"))
            self.events.record("file_released", path=path, size=receipt.size)

    def _written(self, receipt: Receipt) -> None:
        path = receipt.path
        (self.releasing.add if receipt.state == "releasing" else self.releasing.discard)(path)
        wanted = self.meant.get(path)
        if wanted is None and path not in self.wanted:
            self._written_again(receipt)
        elif wanted is not None and not self._step(wanted):
            self.open.pop(path, None)
        elif wanted is not None and path not in self.open:
            self.find_open()
        self.figures.moved(path)
        self.kept.due = True
        self.kept.changed = self.kept.changed or (wanted is not None and wanted.size is None)

    def _written_again(self, receipt: Receipt) -> None:
        """A receipt of a file that is not listed: it is brought only when somebody asks."""
        wanted = wanted_again(receipt, self.repo) if receipt.state == "disputed" else None
        if wanted is None:
            self.again.pop(receipt.path, None)
            self.open.pop(receipt.path, None)
        else:
            self.again[receipt.path] = wanted
            self.open[receipt.path] = wanted

    # Books

    def keep_listing(self) -> None:
        """Write the listing when it changed, soon; at once when it comes to be complete, or no longer is."""
        if not self.seen:
            self.kept.keep_unseen()
        elif self.kept.due:
            self.kept.keep(
                self._sized,
                count=len(self.wanted),
                complete=self._is_complete(),
                revision=self.revision,
                origin=self.lister.origin,
                hurry=self.is_drained(),
            )

    def _is_complete(self) -> bool:
        stretch = self.ahead.stretch
        if self.ahead.bounded and (stretch is None or not stretch.whole):
            return False
        return is_complete(self.meant, self.open, self.book.receipts)

    def _sized(self) -> Iterator[tuple[str, int]]:
        """The listed files; one whose size the server alone knows has its receipt's."""
        receipts = self.book.receipts
        for path, each in self.wanted.items():
            receipt = receipts.get(path) if each.size is None else None
            yield path, each.size if each.size is not None else receipt.size if receipt else 0

    def _as_listing(self) -> Listing:
        return Listing(self.dataset, tuple(self._sized()), False, self.revision, self.lister.origin)

    # What is asked

    def release(self, path: str, sha256: str, owner: str) -> dict[str, Any]:
        """Remove a file that the stage-shard loop needs no more."""
        return self.requests.release(path, sha256, owner)

    def fetch(self, path: str, sha256: str | None, by: str) -> dict[str, Any]:
        """Bring a file again that was removed or given up."""
        return self.requests.fetch(path, sha256, self.wanted.get(path), by)

    # Telling

    def counts(self) -> dict[str, int]:
        """How many files are in which state."""
        self.figures.take(
            self.changes, self.wanted, self.open, self.book.receipts, meant=self.meant, again=self.again
        )
        return self.figures.counts(self.fetcher.transfers.in_hand())

    def status(self) -> dict[str, Any]:
        """Revision, pauses, bytes, rate, time left, and the files under way."""
        paused = self.outcomes.paused()
        self.fetcher.stands(
            self.figures.given_up, {**paused, "source": paused["source"] or bool(self.news.trouble)}
        )
        return {
            "revision": self.revision or (self.listing.revision if self.listing else ""),
            "landing": self.root,
            **self.figures.how_far(self.fetcher.transfers),
            "transfers": self.fetcher.transfers.shown(SHOWN_FILES),
            "paused": self.outcomes.pause_reason,
            "waits": self.fetcher.waits.text,
            "foreign_files": len(self.fetcher.foreign),
            "refused_files": self.news.refused_in_all,
        }

    def next_due(self, now: float) -> float:
        """When to list, try a file again, or look at a pause."""
        due = [self.lister.next_due(now), self.outcomes.next_due(now), self.fetcher.next_due(now)]
        if (again := self.desk().next_due(now)) is not None:
            due.append(again)
        return min(*due, self.kept.next_due())

    # Ending

    def is_drained(self) -> bool:
        """Whether everything listed was brought or given up, and everything to be removed is gone."""
        if not self.seen or self.fetcher.sent or self.fetcher.removing or self.releasing:
            return False
        return not self.desk().unfinished(self.outcomes.given_up)

    def farewell(self) -> int:
        """The last line of --once; 1 where files were given up, each by its name."""
        self.fetcher.close()
        counts = self.counts()
        missing = [path for path in self.open if self.files.takes(path)]
        text = f"{counts['verified']:,} file{'s' * (counts['verified'] != 1)} verified"
        if counts["unproven"]:
            text += f", {counts['unproven']} unproven"
        if counts["released"]:
            text += f", {counts['released']} released"
        if missing:
            text += f", {len(missing)} given up: {some(missing)}; stoker events says why"
        elif self.meant and not (self.listing and self.listing.complete):
            text += ", more come when the loop has counted these" if self.ahead.bounded else ""
        self.context.log.info("drained", message=text)
        return 1 if missing else 0
