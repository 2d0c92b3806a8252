"""The listing as its one writer keeps it: without the files, for 50,000 of them are megabytes."""

from __future__ import annotations

from dataclasses import replace

from stoker.corpus.records.listing import Listing, read_listing, write_listing
from stoker.store.layout import StateLayout


class ListingWriter:
    """`head` is what was written, without the files; None while there is none, or a damaged one."""

    def __init__(self, layout: StateLayout, dataset: str) -> None:
        self._layout, self._dataset = layout, dataset
        found = self.read()
        self.head = None if found is None else replace(found, files=())
        self._hash = hash(found)

    def read(self) -> Listing | None:
        """The listing that was written, with its files."""
        return read_listing(self._layout, self._dataset)

    def write(self, listing: Listing) -> bool:
        """Make it durable where it is another than before; whether it was."""
        if hash(listing) == self._hash:
            return False
        write_listing(self._layout, listing)
        self.head, self._hash = replace(listing, files=()), hash(listing)
        return True
