"""Writes the receipts, the listing and the landing's claim; a record is durable before its event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.corpus.fetch.receipt_changes import Change
from stoker.corpus.records.receipts import Listing, Receipt, read_listing, write_listing, write_receipt
from stoker.corpus.records.record_dir import each_record
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stokerd.download.state import State

CLAIM_EVERY_S = 10.0  # least time between two claims: each wakes the daemons that read the ledger


def read_receipts(context: DaemonContext) -> Iterable[tuple[str, Receipt]]:
    """Returns every receipt by path; sets a damaged receipt aside, and its file is hashed again."""
    dataset = context.pipeline.dataset.name
    return each_record(context.layout.receipts, dataset, Receipt.from_record, context.set_aside)


class Effects:
    """Writes decided changes, each once; `listing` is the last written listing."""

    def __init__(self, context: DaemonContext, state: State[Any]) -> None:
        self._layout, self._events, self._state = context.layout, context.events, state
        self.listing = read_listing(self._layout, context.pipeline.dataset.name)
        self._warned: set[tuple[str, ...]] = set()
        self._claimed = -1  # bytes; -1: unknown, from an earlier daemon
        self._claim_due = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the last written listing is complete."""
        return self.listing is not None and self.listing.complete

    def apply(self, change: Change) -> Mapping[str, Any]:
        """Writes a receipt, then records its event; returns the answer to its request."""
        if change.receipt is not None:
            write_receipt(self._layout, change.receipt)
            self._state.take(change.receipt)
        if change.event:
            self._events.record(change.event, level=change.level, **change.fields)
        return change.answer

    def warn_once(self, event: str, path: str, reason: str, *about: str) -> None:
        """Records a warning once per event, path and `about`."""
        if (event, path, *about) not in self._warned:
            self._warned.add((event, path, *about))
            self._events.record(event, level="warning", path=path, reason=reason)

    def write_listing(self, listing: Listing) -> None:
        """Writes a changed listing, and an event when the listing becomes complete."""
        was_complete = self.is_complete
        if listing == self.listing:
            return
        write_listing(self._layout, listing)
        self.listing = listing
        if listing.complete and not was_complete:
            self._events.record("listing_complete", files=len(listing.files))

    def claim(self, root: str, device: int | None, size: int, *, at_once: bool = False) -> None:
        """Claims so many bytes of the landing's disk; writes the first claim at once, changes every
        CLAIM_EVERY_S."""
        now, size = time.monotonic(), 0 if device is None else size
        if size != self._claimed and (self._claimed <= 0 or at_once or now >= self._claim_due):
            self._claimed, self._claim_due = size, now + CLAIM_EVERY_S
            claims = (Claim(device, root, "landing", size),) if device is not None and size else ()
            write_claims(self._layout, DOWNLOAD_WATCHDOG, claims)
