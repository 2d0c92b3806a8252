"""The download watchdog's receipts: read once, written one by one, and nothing said twice about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from stoker.corpus.records.receipts import Receipt, ReceiptState, write_receipt
from stoker.corpus.records.record_dir import each_record
from stoker.kit.daemon import DaemonContext
from stoker.store.record import RecordDamaged, set_aside


class ReceiptBook:
    """`receipts` by path; `on_write` is called with each receipt once it is durable.

    `verified_bytes` are those of the verified files.
    """

    def __init__(self, context: DaemonContext) -> None:
        self._layout, self._events = context.layout, context.events
        self.dataset = context.pipeline.dataset.name
        self.receipts: dict[str, Receipt] = dict(self._read())
        self._rare: dict[ReceiptState, set[str]] = {"releasing": set(), "disputed": set(), "given_up": set()}
        self.verified_bytes = 0
        for receipt in self.receipts.values():
            self._count(receipt)
        self.changes = 0
        self.on_write: Callable[[Receipt], None] = lambda receipt: None
        self._told: set[tuple[str, str]] = set()

    def _read(self) -> Iterator[tuple[str, Receipt]]:
        return each_record(self._layout.receipts, self.dataset, Receipt.from_record, self._set_aside)

    def _count(self, receipt: Receipt) -> None:
        if receipt.state == "verified":
            self.verified_bytes += receipt.size
        elif receipt.state in self._rare:
            self._rare[receipt.state].add(receipt.path)

    def _uncount(self, receipt: Receipt) -> None:
        if receipt.state == "verified":
            self.verified_bytes -= receipt.size
        elif receipt.state in self._rare:
            self._rare[receipt.state].discard(receipt.path)

    def write(self, receipt: Receipt) -> None:
        """Make a receipt durable, and then the truth."""
        write_receipt(self._layout, receipt)
        before = self.receipts.get(receipt.path)
        if before is not None:
            self._uncount(before)
        self.receipts[receipt.path] = receipt
        self._count(receipt)
        self.changes += 1
        self.on_write(receipt)

    def dispute(self, receipt: Receipt, by: str) -> None:
        """Have a file looked at again, and brought again where it is not what its receipt says."""
        if receipt.state != "disputed" or receipt.found:
            self.write(replace(receipt, state="disputed", found=""))
            self._events.record("receipt_disputed", level="warning", path=receipt.path, by=by)

    def in_state(self, state: Literal["releasing", "disputed", "given_up"]) -> list[str]:
        """The paths of the receipts in one of the rare states."""
        return sorted(self._rare[state])

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
