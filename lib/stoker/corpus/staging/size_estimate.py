"""How much room shard sets take on a disk and running builds will still take: the loop's claims."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.corpus.records.books import Books
from stoker.corpus.records.sources import Source
from stoker.corpus.records.sums import Amount

UNMEASURED_RATIO = 1.5  # set bytes a parquet byte before any set was built; mostly less than 1 for text
SPARE = 1.1  # files differ
_INDEX_BYTES = 16  # a document's end and its row number
FILES_BYTES = 40 << 10  # manifest and small files, and the unused ends of blocks
_STEPS = 8  # a build's claim shrinks in so many steps, not with every commit


def set_bytes(books: Books | None, token_bytes: int) -> int:
    """Returns the bytes of a published set, by its books."""
    if books is None:
        return FILES_BYTES
    return int(books.tokens * token_bytes + (books.documents or 0) * _INDEX_BYTES + FILES_BYTES)


def amount_bytes(amount: Amount, token_bytes: int) -> int:
    """Returns the bytes of all sets in an amount."""
    indices = amount.documents * _INDEX_BYTES
    return amount.tokens * token_bytes + indices + amount.sets * FILES_BYTES


def ratio_of(measured: Amount, token_bytes: int) -> float | None:
    """Returns set bytes a parquet byte of the sets built so far; None before the first."""
    return amount_bytes(measured, token_bytes) / measured.parquet_bytes if measured.parquet_bytes else None


@dataclass(frozen=True)
class Estimate:
    """Computes sizes of sets, published or to be built."""

    token_bytes: int
    ratio: float | None

    def published(self, source: Source) -> int:
        """Returns the bytes of a published source's set."""
        return set_bytes(source.books, self.token_bytes)

    def built(self, source: Source) -> int:
        """Returns the expected bytes of the set to be built from a source."""
        ratio = UNMEASURED_RATIO if self.ratio is None else self.ratio * SPARE
        return int(source.size * ratio) + FILES_BYTES

    def rest(self, source: Source, committed: int, granted: int = 0) -> int:
        """Returns the bytes a running build will still write; `granted` replaces the estimate."""
        whole = granted or self.built(source)
        step = max(1, whole // _STEPS)
        return max(0, whole - committed // step * step)
