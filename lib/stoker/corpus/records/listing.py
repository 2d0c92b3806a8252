"""The listing: which files the dataset's source holds, in training order."""

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
    try:
        return Listing.from_record(read_record(layout.listing(dataset)))
    except (FileNotFoundError, RecordDamaged):
        return None


def listing_reader(layout: StateLayout, dataset: str) -> CachedRecord[Listing | None]:
    """Returns a reader that parses the listing only after its file changed: 50,000 files take 0.1 s."""
    return CachedRecord(layout.listing(dataset), lambda: read_listing(layout, dataset), None)


def write_listing(layout: StateLayout, listing: Listing) -> None:
    """Writes the listing durably."""
    write_record(layout.listing(listing.dataset), listing.to_record())


def first(things: Mapping[str, T], most: int | None) -> Mapping[str, T]:
    """Returns the first `most` items; the mapping itself where it has no more."""
    return things if most is None or most >= len(things) else dict(islice(things.items(), most))
