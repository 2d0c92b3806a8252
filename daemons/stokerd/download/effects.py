"""The only writer of receipts, the listing and the landing's claim; a record is durable before its event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.corpus.fetch.receipt_changes import Change
from stoker.corpus.records.listing import Listing, read_listing, write_listing
from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.corpus.records.record_dir import each_record
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stokerd.download.state import State

CLAIM_EVERY_S = 10.0  # between two claims: each wakes the daemons that read the ledger


def read_receipts(context: DaemonContext) -> Iterable[tuple[str, Receipt]]:
    """Every receipt by its path; a damaged one is moved aside, and its file is hashed again."""
    dataset = context.pipeline.dataset.name
    return each_record(context.layout.receipts, dataset, Receipt.from_record, context.set_aside)


class Effects:
    """Writes what was decided, and nothing twice; `listing` is the one that was written."""

    def __init__(self, context: DaemonContext, state: State[Any]) -> None:
        self._layout, self._events, self._state = context.layout, context.events, state
        self.listing = read_listing(self._layout, context.pipeline.dataset.name)
        self._warned: set[tuple[str, ...]] = set()
        self._claimed = -1  # bytes; -1: what an earlier daemon claimed
        self._claim_due = 0.0

    @property
    def is_complete(self) -> bool:
        """What the listing that was written says."""
        return self.listing is not None and self.listing.complete

    def apply(self, change: Change) -> Mapping[str, Any]:
        """Write a receipt, then record its event; returns the answer to the request for it."""
        if change.receipt is not None:
            write_receipt(self._layout, change.receipt)
            self._state.take(change.receipt)
        if change.event:
            self._events.record(change.event, level=change.level, **change.fields)
        return change.answer

    def warn_once(self, event: str, path: str, reason: str, *about: str) -> None:
        """Record a warning about a path, unless that was done already, of the same content if told."""
        if (event, path, *about) not in self._warned:
            self._warned.add((event, path, *about))
            self._events.record(event, level="warning", path=path, reason=reason)

    def write_listing(self, listing: Listing) -> None:
        """Write the listing where it is another; the event tells that it has come to be complete."""
        was_complete = self.is_complete
        if listing == self.listing:
            return
        write_listing(self._layout, listing)
        self.listing = listing
        if listing.complete and not was_complete:
            self._events.record("listing_complete", files=len(listing.files))

    def claim(self, root: str, device: int | None, size: int, *, at_once: bool = False) -> None:
        """Claim so many bytes of the landing's disk; written when that begins, and when it changes, now and
        then."""
        now, size = time.monotonic(), 0 if device is None else size
        if size != self._claimed and (self._claimed <= 0 or at_once or now >= self._claim_due):
            self._claimed, self._claim_due = size, now + CLAIM_EVERY_S
            claims = (Claim(device, root, "landing", size),) if device is not None and size else ()
            write_claims(self._layout, DOWNLOAD_WATCHDOG, claims)
