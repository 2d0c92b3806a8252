"""The download watchdog's receipts: read once, written one by one, and nothing said twice about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stoker.corpus.receipts import Receipt, read_receipts, write_receipt
from stoker.kit.daemon import DaemonContext
from stoker.store.record import RecordDamaged, set_aside


class ReceiptBook:
    """`receipts` by path; `on_write` is called with each receipt once it is durable."""

    def __init__(self, context: DaemonContext) -> None:
        self._layout, self._events = context.layout, context.events
        self.dataset = context.pipeline.dataset.name
        self.receipts = read_receipts(self._layout, self.dataset, self._set_aside)
        self.changes = 0
        self.on_write: Callable[[Receipt], None] = lambda receipt: None
        self._told: set[tuple[str, str]] = set()

    def write(self, receipt: Receipt) -> None:
        """Make a receipt durable, and then the truth."""
        write_receipt(self._layout, receipt)
        self.receipts[receipt.path] = receipt
        self.changes += 1
        self.on_write(receipt)

    def tell_once(self, event: str, path: str, reason: str) -> None:
        """Record a warning about a path, unless that was done already."""
        if (event, path) not in self._told:
            self._told.add((event, path))
            self._events.record(event, level="warning", path=path, reason=reason)

    def came_back(self, event: str, told_of: Callable[[str], bool]) -> None:
        """Tell it again should it happen again to those paths."""
        self._told = {each for each in self._told if each[0] != event or not told_of(each[1])}

    def _set_aside(self, file: Path, error: RecordDamaged) -> None:
        # Its file is hashed again: without a receipt it is as good as new.
        place = set_aside(file, self._layout.quarantine, "damaged", str(error))
        self._events.record("record_damaged", level="error", path=str(file), moved_to=str(place))
