"""Receipts: records of the source files that are on disk. Only the download watchdog writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from stoker.corpus.records.record_dir import Damaged, read_records
from stoker.store.layout import StateLayout
from stoker.store.record import body_of, values_of, write_record

ReceiptState = Literal["verified", "releasing", "released", "disputed", "given_up", "unproven"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of one source file.

    States: `verified`: the file is here and true. `unproven`: the file is here, but came without a length or
    a checksum that shows whether it is whole. `releasing`, `released`: removed on purpose, fetched again only
    on request. `disputed`: found wrong later, and fetched again. `given_up`: the watchdog could not fetch the
    file.
    """

    dataset: str
    path: str
    file: str
    size: int  # bytes of `file`
    sha256: str  # of `file`
    revision: str  # shows, with `etag`, a later change of the origin; empty for a folder
    etag: str  # for a folder "<size>-<mtime_ns>-<inode>"
    state: ReceiptState
    # While a folder's file is rotten: its sha256 now, with size, time and inode of the receipt
    found: str = ""

    @property
    def usable(self) -> bool:
        """Whether the content can be read; preflight finds out whether an unproven file is parquet."""
        return self.state in ("verified", "unproven")

    @property
    def rotten(self) -> bool:
        """Whether the file's content changed although no program wrote to the file."""
        return self.state == "disputed" and bool(self.found)

    @property
    def unobtainable(self) -> bool:
        """Whether the content is missing and no fetch will bring it."""
        return self.state == "given_up" or self.rotten

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Receipt:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        values = values_of(cls, record, "dataset", "path", "sha256", "revision", "state")
        if values["state"] not in get_args(ReceiptState):
            raise ValueError(f"state {values['state']!r}")
        return cls(**values)

    def to_record(self) -> dict[str, Any]:
        return body_of(self)


def read_receipts(layout: StateLayout, dataset: str, damaged: Damaged | None = None) -> dict[str, Receipt]:
    """Returns every receipt of the dataset by path; damaged records are left out and passed to `damaged`."""
    return read_records(layout.receipts, dataset, Receipt.from_record, damaged)


def write_receipt(layout: StateLayout, receipt: Receipt) -> None:
    """Writes the receipt durably, under the record name of its path."""
    write_record(layout.receipt(receipt.dataset, receipt.path), receipt.to_record())
