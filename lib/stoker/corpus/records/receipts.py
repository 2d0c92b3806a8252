"""Receipts: what the download watchdog vouches for. It alone writes them."""

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
    """One source file that is here: `size` in bytes and `sha256` are those of `file`'s content.

    `verified`: it is here and true. `unproven`: it is here, but came without a length or a sum to tell
    whether it is whole. `releasing`, `released`: removed on purpose, fetched anew only if asked.
    `disputed`: found wrong later, brought again. `given_up`: it could not be brought; no content is here.

    `found` is set while a disputed file of a folder is rotten: the sha256 that it has now, although size,
    time and inode are those of the receipt.

    `revision` and `etag` tell a later change of the origin apart; for a folder the revision is empty and
    the etag is "<size>-<mtime_ns>-<inode>".
    """

    dataset: str
    path: str
    file: str
    size: int
    sha256: str
    revision: str
    etag: str
    state: ReceiptState
    found: str = ""

    @property
    def usable(self) -> bool:
        """Whether the content is here, to be read; preflight tells whether an unproven file is parquet."""
        return self.state in ("verified", "unproven")

    @property
    def rotten(self) -> bool:
        """Whether the file's content changed while nobody wrote to it."""
        return self.state == "disputed" and bool(self.found)

    @property
    def unobtainable(self) -> bool:
        """Whether the content is not here and does not come by itself."""
        return self.state == "given_up" or self.rotten

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Receipt:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        values = values_of(cls, record, "dataset", "path", "sha256", "revision", "state")
        if values["state"] not in get_args(ReceiptState):
            raise ValueError(f"state {values['state']!r}")
        return cls(**values)

    def to_record(self) -> dict[str, Any]:
        """The record's body."""
        return body_of(self)


def read_receipts(layout: StateLayout, dataset: str, damaged: Damaged | None = None) -> dict[str, Receipt]:
    """Every receipt of the dataset by path; damaged records are left out and handed to `damaged`."""
    return read_records(layout.receipts, dataset, Receipt.from_record, damaged)


def write_receipt(layout: StateLayout, receipt: Receipt) -> None:
    """Make the receipt durable under its path's record name."""
    write_record(layout.receipt(receipt.dataset, receipt.path), receipt.to_record())
