"""Records that the download watchdog and the stage-shard loop exchange: receipts, the listing, the demand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from stoker.corpus.records.record_dir import Damaged, ignore, read_records, when_changed
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, body_of, read_record, read_whole, values_of, write_record

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


def read_receipts(layout: StateLayout, dataset: str, damaged: Damaged = ignore) -> dict[str, Receipt]:
    """Returns every receipt of the dataset by path; damaged records are left out and passed to `damaged`."""
    return read_records(layout.receipts, dataset, Receipt.from_record, damaged)


def write_receipt(layout: StateLayout, receipt: Receipt) -> None:
    """Writes the receipt durably, under the record name of its path."""
    write_record(layout.receipt(receipt.dataset, receipt.path), receipt.to_record())


T = TypeVar("T")


@dataclass(frozen=True)
class Listing:
    """The files of the dataset's source; written by the download watchdog."""

    dataset: str
    files: tuple[tuple[str, int], ...]  # (path, size in bytes) sorted by path; 0 for an unknown size
    # Every listed file (every file in the slice, where one is set) has a receipt that vouches for it or gives
    # it up, and the last scan found no file that was still changing.
    complete: bool
    revision: str  # the commit, or the sha256 of the list of URLs
    origin: str = ""  # the repository or list that `revision` belongs to

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Listing:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        files = tuple((sys.intern(path), int(size)) for path, size in record["files"])
        return cls(**values_of(cls, record) | {"files": files})

    def to_record(self) -> dict[str, Any]:
        return body_of(self) | {"files": [list(file) for file in self.files]}

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths in training order."""
        return tuple(path for path, _ in self.files)


def read_listing(layout: StateLayout, dataset: str) -> Listing | None:
    """Returns the dataset's listing; None where it is missing or damaged (the next scan repairs it)."""
    record = read_whole(layout.listing(dataset))
    return None if record is None else Listing.from_record(record)


def listing_reader(layout: StateLayout, dataset: str) -> Callable[[], Listing | None]:
    """Returns a reader that parses the listing only after its file changed: 50,000 files take 0.1 s."""
    return when_changed(layout.listing(dataset), lambda: read_listing(layout, dataset))


def write_listing(layout: StateLayout, listing: Listing) -> None:
    """Writes the listing durably."""
    write_record(layout.listing(listing.dataset), listing.to_record())


@dataclass(frozen=True)
class Unneeded:
    """A file that the watchdog is to remove from the landing."""

    sha256: str  # the file's content
    owner: str  # the path whose shard set has that content: another path than the file's for a duplicate


@dataclass(frozen=True)
class Demand:
    unneeded: Mapping[str, Unneeded] = field(default_factory=dict)  # by path
    missed: Mapping[str, str] = field(default_factory=dict)  # sha256 of the content to fetch again, by path

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Demand:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        unneeded = {str(path): Unneeded(str(sha), str(owner)) for path, sha, owner in record["unneeded"]}
        return cls(unneeded, {str(path): str(sha256) for path, sha256 in record["missed"]})

    def to_record(self, dataset: str) -> dict[str, Any]:
        return {
            "v": 1,
            "dataset": dataset,
            "unneeded": [[path, one.sha256, one.owner] for path, one in sorted(self.unneeded.items())],
            "missed": [list(one) for one in sorted(self.missed.items())],
        }


def write_demand(layout: StateLayout, dataset: str, demand: Demand) -> None:
    """Writes the demand durably."""
    write_record(layout.demand, demand.to_record(dataset))


def read_demand(layout: StateLayout, dataset: str) -> Demand:
    """Returns the demand; an empty demand where the record is missing or damaged.

    The loop writes a damaged record again at its start.
    """
    try:
        record = read_record(layout.demand)
        return Demand.from_record(record) if record["dataset"] == dataset else Demand()
    except (FileNotFoundError, RecordDamaged, KeyError, TypeError, ValueError):
        return Demand()


def demand_reader(layout: StateLayout, dataset: str) -> Callable[[], Demand]:
    """Returns a reader that parses the demand only after its file changed."""
    return when_changed(layout.demand, lambda: read_demand(layout, dataset))
