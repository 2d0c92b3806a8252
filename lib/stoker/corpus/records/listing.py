"""The listing: which files the dataset's source holds, in the order that training follows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.corpus.records.cached_record import CachedRecord
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, read_record, write_record


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
        return cls(
            dataset=str(record["dataset"]),
            files=tuple((sys.intern(str(path)), int(size)) for path, size in record["files"]),
            complete=bool(record["complete"]),
            revision=str(record["revision"]),
            origin=str(record.get("origin", "")),
        )

    def to_record(self) -> dict[str, Any]:
        """The record's body."""
        return {
            "v": 1,
            "dataset": self.dataset,
            "files": [list(file) for file in self.files],
            "complete": self.complete,
            "revision": self.revision,
            **({"origin": self.origin} if self.origin else {}),
        }

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


class ListingWriter:
    """Its one writer. `head` is what was written, without the files, which may be megabytes; None while there
    is none, or a damaged one."""

    def __init__(self, layout: StateLayout, dataset: str) -> None:
        self._layout, self._dataset = layout, dataset
        self.head: Listing | None = None
        self._hash = 0
        if (found := self.read()) is not None:
            self._note(found)

    def read(self) -> Listing | None:
        """The listing that was written, with its files."""
        return read_listing(self._layout, self._dataset)

    def write(self, listing: Listing) -> bool:
        """Make it durable where it is another than before; whether it was."""
        if hash(listing) == self._hash:
            return False
        write_listing(self._layout, listing)
        self._note(listing)
        return True

    def _note(self, listing: Listing) -> None:
        self.head, self._hash = replace(listing, files=()), hash(listing)
