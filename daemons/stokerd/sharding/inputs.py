"""Inputs that other processes write for the stage-shard loop: receipts, the listing, requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.corpus.records.receipts import Receipt, listing_reader
from stoker.corpus.records.record_dir import RecordDir
from stoker.kit.daemon import DaemonContext
from stoker.store.layout import STAGE_SHARD
from stokerd.common.requests import RequestBox
from stokerd.sharding.activities.prove import PROVE_SET
from stokerd.sharding.facts.quarantine import VERBS

if TYPE_CHECKING:
    from stokerd.sharding.state import State


class Inputs:
    """Reads changed inputs; `due` is when to read again without a wake-up."""

    def __init__(self, context: DaemonContext) -> None:
        layout, dataset = context.layout, context.pipeline.dataset.name
        self._receipts = RecordDir(layout.receipts, dataset, Receipt.from_record, patient=True)
        self._listing = listing_reader(layout, dataset)
        self._box = RequestBox(layout, STAGE_SHARD, context.events)

    def watch(self, context: DaemonContext) -> None:
        """Subscribes to receipts, listings, requests and claims."""
        layout = context.layout
        for directory in (layout.receipts, layout.receipts / "listings", layout.requests(STAGE_SHARD)):
            context.waiter.watch(directory)
        context.waiter.watch(layout.ledger(STAGE_SHARD).parent)

    def read_receipts(self, state: State) -> None:
        records = state.records
        records.receipts = self._receipts.read()
        records.touched |= self._receipts.take_changed()
        records.is_behind = self._receipts.behind

    def read(self, state: State) -> None:
        """Reads all inputs; refuses unknown requests."""
        records = state.records
        self.read_receipts(state)
        listing = records.pinning.listing = self._listing.read() or records.pinning.listing
        if not records.is_behind:
            records.files.check(listing, records.receipts, records.sources)
        records.requests = []
        self._box.answer(dict.fromkeys((PROVE_SET, *VERBS), records.requests.append))

    @property
    def due(self) -> float:
        return self._receipts.due
