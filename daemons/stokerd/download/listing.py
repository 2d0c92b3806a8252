"""Writes the listing of a source that is fetched: when, and what it says before the source was seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from stoker.corpus.fetch.selection import still_complete
from stoker.corpus.records.listing_writer import ListingBook, ListingHead
from stokerd.download.source_kind import Desktop

EVERY_S = 5.0  # between two writings of a listing that is not complete


class ListingKeeper:
    """`due`: something happened that the listing may have to tell. `changed`: its files, or their sizes, are
    others than those written."""

    def __init__(self, tools: Desktop) -> None:
        self._events, self._book = tools.context.events, tools.book
        self._kept = ListingBook(tools.context.layout, tools.book.dataset)
        self._written_at = 0.0
        self.due, self.changed = self.head is not None, False

    @property
    def head(self) -> ListingHead | None:
        """What was written."""
        return self._kept.head

    def keep_unseen(self) -> None:
        """Before the source was listed anew: what was complete may no longer be so."""
        if not self.due:
            return
        self.due = False
        if (head := self.head) is None or not head.complete:
            return
        if not still_complete((path for path, _ in self._kept.files()), self._book.receipts):
            files = self._kept.files()
            self._kept.write(files, complete=False, revision=head.revision, origin=head.origin)

    def keep(
        self,
        files: Callable[[], Iterable[tuple[str, int]]],
        *,
        count: int,
        complete: bool,
        revision: str,
        origin: str,
        hurry: bool,
    ) -> None:
        """Write it soon; at once when it comes to be complete, or no longer is, or in a hurry."""
        now, before = time.monotonic(), self.head
        at_once = before is None or before.complete != complete or before.revision != revision
        if not at_once and not self.changed:
            self.due = False
        elif at_once or hurry or now >= self._written_at + EVERY_S:
            self._kept.write(files(), complete=complete, revision=revision, origin=origin)
            self._written_at, self.due, self.changed = now, False, False
            if complete and (before is None or not before.complete):
                self._events.record("listing_complete", files=count)

    def next_due(self) -> float:
        """When to write, monotonic seconds."""
        return self._written_at + EVERY_S if self.due else math.inf
