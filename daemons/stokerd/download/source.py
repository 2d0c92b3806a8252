"""Base of the two kinds of source: a folder, and files that are fetched."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.corpus.records.receipts import Listing
from stoker.corpus.records.worklist import Listed, Rules
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import WorkerPool
from stoker.store.errors import DataError
from stokerd.common.files_list import insist_known, read_files_list
from stokerd.download.effects import Effects, read_receipts
from stokerd.download.state import Pauses, State

L = TypeVar("L", bound=Listed)
LISTING_EVERY_S = 5.0  # between two writes of an incomplete listing
VANISHED_SHOWN = 20


class Source(Generic[L]):
    """A source: the worker that lists it, those that bring its files, and its state.

    `shown` names it for people, without secrets. `seen`: it was listed since the daemon started. `revision`
    is that of the listing, `origin` names the source that it revises.
    """

    def __init__(self, context: DaemonContext, pool: WorkerPool[Any], rules: Rules[L], *, shown: str) -> None:
        self.context, self.pool, self.shown = context, pool, shown
        self.pipeline, self.events = context.pipeline, context.events
        self.dataset = self.pipeline.dataset.name
        given = context.files_list
        only = None if given is None else read_files_list(Path(given))
        self.state = State(rules, read_receipts(context), Pauses(context.events), only)
        self.effects = Effects(context, self.state)
        # Between two looks at a folder or at a list of URLs.
        self.look_every_s = min(30.0, max(1.0, self.pipeline.stage.settle / 3))
        self.look_due = 0.0  # monotonic seconds
        self.seen = False
        self.revision = self.origin = ""
        self.listed = 0  # number of listings
        self.listing_due = 0.0  # when the listing may be written again, monotonic seconds
        self._kept = (0, -1)  # `listed` and `changes` as of the written listing
        self._gone: set[str] = set()
        self._foreign: Sequence[str] = ()
        self.foreign_files = 0

    # Defined by each kind

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether every file has a valid receipt."""

    # Common to both kinds

    def is_drained(self) -> bool:
        """Whether --once has no work left: every file was brought, or tried often enough."""
        state = self.state
        return self.seen and not (state.transfers or state.removing or state.is_left())

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
            self.effects.warn_once("files_list_unknown", self.shown, str(error))

    def tell_vanished(self, gone: Collection[str], reason: str) -> None:
        """Records files with a receipt that left the source, each once, at most VANISHED_SHOWN."""
        new = sorted(set(gone) - self._gone)
        self._gone = set(gone)
        for path in new[:VANISHED_SHOWN]:
            self.events.record("source_vanished", level="warning", path=path, reason=reason)
        if (more := len(new) - VANISHED_SHOWN) > 0:
            said = f"{more} more files are not listed any more"
            self.events.record("source_vanished", level="warning", path="", reason=said)

    def keep_listing(self) -> None:
        """Writes a changed listing: at once if complete or revision changes or is_drained(), else
        every LISTING_EVERY_S."""
        if not self.seen or self._kept == (self.listed, self.state.changes):
            return
        now, head, complete = time.monotonic(), self.effects.listing, self.is_complete
        is_other = head is None or (head.complete, head.revision) != (complete, self.revision)
        if is_other or now >= self.listing_due or self.is_drained():
            self._kept, self.listing_due = (self.listed, self.state.changes), now + LISTING_EVERY_S
            files = tuple(self.sized(self.state.work.listed))
            self.effects.write_listing(Listing(self.dataset, files, complete, self.revision, self.origin))

    def take_foreign(self, foreign: Sequence[str], count: int) -> None:
        """Records a changed set of another client's unfinished files: the first name and the number."""
        if foreign and foreign != self._foreign:
            reason = "another client's; left alone"
            self.events.record("foreign_files", count=count, first=foreign[0], reason=reason)
        self._foreign, self.foreign_files = foreign, count

    def sized(self, listed: Mapping[str, L]) -> Iterator[tuple[str, int]]:
        """Yields the paths and sizes of listed files; a size missing in the listing is the receipt's."""
        for path, each in listed.items():
            receipt = self.state.receipts.get(path) if each.size is None else None
            yield path, each.size if each.size is not None else receipt.size if receipt else 0


def some(paths: Collection[str], most: int = 20) -> str:
    """Returns up to `most` names as text, with the number of the rest."""
    shown = ", ".join(sorted(paths)[:most])
    return f"{shown} and {len(paths) - most} more" if len(paths) > most else shown
