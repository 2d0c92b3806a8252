"""Base of the kinds of source: what stoker.config.sources names is a subclass.

It writes the receipts and the listing; a record is durable before its event.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from stoker.corpus.fetch.decide import Change
from stoker.corpus.records.receipts import Listing, Unneeded, read_listing, write_listing, write_receipt
from stoker.corpus.records.worklist import L, Rules
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.store.errors import DataError
from stokerd.common.files_list import insist_known, read_files_list
from stokerd.download.state import State, Work

LISTING_EVERY_S = 5.0  # between two writes of an incomplete listing
VANISHED_SHOWN = 20


class Source(ABC, Generic[L]):
    """A source: the worker that lists it, those that bring its files, and its state.

    `shown` names it for people, without secrets. `seen`: it was listed since the daemon started. `revision`
    is that of the listing, `origin` names the source that it revises. `written` is the last written listing.
    """

    def __init__(
        self, context: DaemonContext, pool: WorkerPool[Work], rules: Rules[L], *, shown: str
    ) -> None:
        self.context, self.pool, self.shown = context, pool, shown
        self.pipeline, self.events, self.layout = context.pipeline, context.events, context.layout
        self.dataset = self.pipeline.dataset.name
        given = context.files_list
        self.state = State(context, rules, None if given is None else read_files_list(Path(given)))
        self.written = read_listing(self.layout, self.dataset)
        # Between two looks at a folder or at a list of URLs.
        self.look_every_s = min(30.0, max(1.0, self.pipeline.stage.settle / 3))
        self.look_due = 0.0  # monotonic seconds
        self.seen = False
        self.is_whole = True  # whether `selected` are all the files that are ever to be had of the listing
        self.revision = self.origin = ""
        self.listed = 0  # number of listings
        self.listing_due = 0.0  # when the listing may be written again, monotonic seconds
        self._kept = (0, -1)  # `listed` and `changes` as of the written listing
        self._warned: set[tuple[str, ...]] = set()
        self._vanished: set[str] = set()
        self.unmanaged_files = 0

    # What each kind does in its own way

    @property
    @abstractmethod
    def trouble(self) -> str:
        """Why the source or its landing cannot be used now; empty when it can."""

    @abstractmethod
    def refresh(self) -> None:
        """Has the source listed where that is due."""

    @abstractmethod
    def bring(self) -> None:
        """Gives waiting files to workers."""

    @abstractmethod
    def hear(self, job: Job[Work], message: Mapping[str, Any]) -> None:
        """Handles a message of one of its workers."""

    @abstractmethod
    def ended(self, job: Job[Work], ended: WorkerExit) -> None:
        """Handles the end of one of its workers."""

    @abstractmethod
    def released(self, path: str, unneeded: Unneeded) -> Change:
        """Returns what follows where the stage-shard loop no longer needs a file."""

    @abstractmethod
    def fetched_again(self, path: str, sha256: str | None, by: str) -> Change:
        """Returns what follows where a file is wanted again."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Returns the number of files by state."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Returns what the kind has in the status of its own."""

    @abstractmethod
    def next_due(self, now: float) -> float:
        """Returns when it has to act next, monotonic seconds."""

    @abstractmethod
    def summary(self) -> tuple[str, int]:
        """Returns the summary of --once and its exit code."""

    # What all kinds share

    @property
    def is_complete(self) -> bool:
        """Whether every file to have has a valid receipt, or was given up, and at least one came."""
        work = self.state.work
        come = sum(work.counts.values()) - work.counts["waiting"] - work.counts["given_up"]
        return self.is_whole and bool(work.selected) and not work.is_any_to_come and come > 0

    def is_drained(self) -> bool:
        """Whether --once has no work left: every file was brought, or tried often enough."""
        state = self.state
        return self.seen and not (
            state.transfers or state.removing or any(map(state.is_meant, state.work.pending))
        )

    def apply(self, change: Change) -> Mapping[str, Any]:
        """Writes a receipt, then records its event; returns the answer to its request."""
        if change.receipt is not None:
            write_receipt(self.layout, change.receipt)
            self.state.take(change.receipt)
        if change.event:
            self.events.record(change.event, **change.fields)
        return change.answer

    def warn_once(self, event: str, path: str, reason: str, *about: str) -> None:
        """Records a warning once per event, path and `about`."""
        if (event, path, *about) not in self._warned:
            self._warned.add((event, path, *about))
            self.events.record(event, path=path, reason=reason)

    def take_listing(
        self, listed: Mapping[str, L], selected: Mapping[str, L], where: str, held: Collection[str] = ()
    ) -> None:
        """Replaces the listing; refuses names of --files-list that are neither in `held` nor listed.

        An empty `where` skips that check. A running daemon only warns once, as the files may still come.
        """
        self.state.work.take(listed, selected)
        self.listed += 1
        try:
            insist_known((self.state.only or ()) if where else (), held or listed, where)
        except DataError as error:
            if self.context.once:
                raise
            self.warn_once("files_list_unknown", self.shown, str(error))

    def tell_vanished(self, gone: Collection[str], reason: str) -> None:
        """Records files with a receipt that left the source, once; beyond VANISHED_SHOWN their number."""
        new = sorted(set(gone) - self._vanished)
        self._vanished = set(gone)
        for path in new[:VANISHED_SHOWN]:
            self.events.record("source_vanished", path=path, reason=reason)
        if (more := len(new) - VANISHED_SHOWN) > 0:
            said = f"{more} more files are not listed any more"
            self.events.record("source_vanished", path="", reason=said)

    def take_unmanaged(self, unmanaged: Sequence[str], count: int) -> None:
        """Records another client's unfinished files when their number changes."""
        if unmanaged and count != self.unmanaged_files:
            reason = "another client's; left alone"
            self.events.record("foreign_files", count=count, first=unmanaged[0], reason=reason)
        self.unmanaged_files = count

    def keep_listing(self) -> None:
        """Writes a changed listing: at once if complete or revision changes or is_drained(), else
        every LISTING_EVERY_S."""
        if not self.seen or self._kept == (self.listed, self.state.changes):
            return
        now, before, complete = time.monotonic(), self.written, self.is_complete
        is_other = before is None or (before.complete, before.revision) != (complete, self.revision)
        if not (is_other or now >= self.listing_due or self.is_drained()):
            return
        self._kept, self.listing_due = (self.listed, self.state.changes), now + LISTING_EVERY_S
        files = tuple(self.sized(self.state.work.listed))
        listing = Listing(self.dataset, files, complete, self.revision, self.origin)
        if listing == before:
            return
        write_listing(self.layout, listing)
        self.written = listing
        if complete and not (before and before.complete):
            self.events.record("listing_complete", files=len(files))

    def sized(self, listed: Mapping[str, L]) -> Iterator[tuple[str, int]]:
        """Yields the paths and sizes of listed files; a size missing in the listing is the receipt's."""
        for path, each in listed.items():
            receipt = self.state.receipts.get(path) if each.size is None else None
            yield path, each.size if each.size is not None else receipt.size if receipt else 0


def some(paths: Collection[str], most: int = 20) -> str:
    """Returns up to `most` names as text, with the number of the rest."""
    shown = ", ".join(sorted(paths)[:most])
    return f"{shown} and {len(paths) - most} more" if len(paths) > most else shown
