"""The listing: which files the dataset's source holds, in the order that training follows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from stoker.corpus.records.cached_record import CachedRecord
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, body_of, read_record, values_of, write_record

T = TypeVar("T")


@dataclass(frozen=True)
class Listing:
    """The source's files as (path, size in bytes), sorted by path; written by the download watchdog.

    `complete`: every listed file (of a slice, every file in it) has a receipt that vouches for it or says
    that it was given up, and the last scan found nothing that was still changing. A size that nobody knows
    yet is 0.
    `revision` is the commit, or the sha256 of the list of URLs; `origin` says of what it is the revision.
    """

    dataset: str
    files: tuple[tuple[str, int], ...]
    complete: bool
    revision: str
    origin: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Listing:
        """Read one; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        files = tuple((sys.intern(path), int(size)) for path, size in record["files"])
        return cls(**values_of(cls, record) | {"files": files})

    def to_record(self) -> dict[str, Any]:
        """The record's body."""
        return body_of(self) | {"files": [list(file) for file in self.files]}

    @property
    def paths(self) -> tuple[str, ...]:
        """The listed paths in listing order."""
        return tuple(path for path, _ in self.files)


def read_listing(layout: StateLayout, dataset: str) -> Listing | None:
    """The dataset's listing; None while there is none (or its record is damaged: the next scan mends it)."""
    try:
        return Listing.from_record(read_record(layout.listing(dataset)))
    except (FileNotFoundError, RecordDamaged):
        return None


def listing_reader(layout: StateLayout, dataset: str) -> CachedRecord[Listing | None]:
    """Reads the listing again only after it changed: for 50,000 files that is a tenth of a second of work."""
    return CachedRecord(layout.listing(dataset), lambda: read_listing(layout, dataset), None)


def write_listing(layout: StateLayout, listing: Listing) -> None:
    """Make the listing durable."""
    write_record(layout.listing(listing.dataset), listing.to_record())


def first(things: Mapping[str, T], most: int | None) -> Mapping[str, T]:
    """The first so many; the mapping itself where there are no more."""
    return things if most is None or most >= len(things) else dict(islice(things.items(), most))
