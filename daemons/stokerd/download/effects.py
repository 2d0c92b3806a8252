"""The only writer of receipts, the listing and the landing's claim; a record is durable before its event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.corpus.fetch.receipt_changes import Change
from stoker.corpus.records.listing import Listing, ListingWriter
from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.corpus.records.record_dir import each_record
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.record import RecordDamaged, set_aside
from stokerd.download.state import State

LISTING_EVERY_S = 5.0  # between two writings of a listing that is not complete
CLAIM_EVERY_S = 10.0  # between two claims: each wakes the daemons that read the ledger
CLAIM_STEP = 64 << 20  # a change of fewer bytes is no news


def read_receipts(context: DaemonContext) -> Iterable[tuple[str, Receipt]]:
    """Every receipt by its path; a damaged one is moved aside, and its file is hashed again."""

    def damaged(file: Path, error: RecordDamaged) -> None:
        place = set_aside(file, context.layout.quarantine, "damaged", str(error))
        context.events.record("record_damaged", level="error", path=str(file), moved_to=str(place))

    return each_record(context.layout.receipts, context.pipeline.dataset.name, Receipt.from_record, damaged)


class Effects:
    """Writes what was decided, and nothing twice; the `head` of `listing` is what that says."""

    def __init__(self, context: DaemonContext, state: State[Any]) -> None:
        self._layout, self._events, self._state = context.layout, context.events, state
        self.listing = ListingWriter(self._layout, context.pipeline.dataset.name)
        self.listing_due = 0.0  # when it may be written again, monotonic seconds
        self._told: set[tuple[str, str]] = set()
        self._claimed = -1  # bytes; -1: what an earlier daemon claimed
        self._claim_due = 0.0

    @property
    def is_complete(self) -> bool:
        """What the listing that was written says."""
        return self.listing.head is not None and self.listing.head.complete

    def apply(self, change: Change) -> Mapping[str, Any]:
        """Write a receipt, then record its event; returns the answer to the request for it."""
        if change.receipt is not None:
            write_receipt(self._layout, change.receipt)
            self._state.take(change.receipt)
        if (event := change.event) is not None:
            self._events.record(event.word, level=event.level, **event.fields)
        return change.answer

    def warn_once(self, event: str, path: str, reason: str) -> None:
        """Record a warning about a path, unless that was done already."""
        if (event, path) not in self._told:
            self._told.add((event, path))
            self._events.record(event, level="warning", path=path, reason=reason)

    def tell_foreign(self, count: int, path: str) -> None:
        """Tell of files that another client has not finished."""
        reason = "another client's; left alone"
        self._events.record("foreign_files", count=count, first=path, reason=reason)

    def keep_listing(self, head: Listing, files: Callable[[], Iterable[tuple[str, int]]]) -> bool:
        """Write the listing, whose files `files` tells: at once when it comes to be complete, no longer is,
        or is of another revision, else now and then. Whether that was now."""
        now, before = time.monotonic(), self.listing.head
        is_other = before is None or (before.complete, before.revision) != (head.complete, head.revision)
        if not is_other and now < self.listing_due:
            return False
        self.listing_due = now + LISTING_EVERY_S
        listing = replace(head, files=tuple(files()))
        if self.listing.write(listing) and head.complete and not (before and before.complete):
            self._events.record("listing_complete", files=len(listing.files))
        return True

    def claim(self, root: str, device: int | None, size: int) -> None:
        """Claim so many bytes of the landing's disk; written when it begins, ends, or changed much."""
        begins = self._claimed <= 0 < size and device is not None
        is_news = (size == 0) != (self._claimed <= 0) or abs(size - self._claimed) >= CLAIM_STEP
        if self._claimed < 0 or begins or (is_news and time.monotonic() >= self._claim_due):
            is_known = device is not None and size > 0
            self._claimed, self._claim_due = size if is_known else 0, time.monotonic() + CLAIM_EVERY_S
            claims = (Claim(device, root, "landing", size),) if device is not None and size else ()
            write_claims(self._layout, DOWNLOAD_WATCHDOG, claims)

    def end_claim(self) -> None:
        """Claim nothing any more."""
        if self._claimed > 0:
            self._claimed = 0
            write_claims(self._layout, DOWNLOAD_WATCHDOG, ())
