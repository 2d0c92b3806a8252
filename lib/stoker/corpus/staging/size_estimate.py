"""How much room shard sets take on a disk and running builds will still take: the loop's claims.

A claim is an estimate from the file's size. Repetitive text can take a thousand times more, so a build stops
at its claim and asks for more.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.corpus.records.index import Amount
from stoker.corpus.records.sources import Books, Source

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


USUAL = 2  # times the expected size: the usual error of an estimate; such a build may use the floor
STEP_BYTES = 16 << 20  # a claim is raised by at least so much where there is room: builds ask seldom
AGAIN = 1.25  # times the size so far: the room that a build which was set back needs to begin again
HOPELESS = 1.5  # times the size so far: a build that hot could never hold at this size does not wait for room


@dataclass(frozen=True)
class Growth:
    """A build at the end of its claim; all in bytes of its set."""

    expected: int
    claimed: int
    written: int  # on hot
    needed: int  # `written` and the next write
    room: int  # free above the floor and not claimed by other work
    floor_room: int  # the part of the floor that any begun build may use
    most: int  # that hot can hold of one set after every removable set has left

    @property
    def is_usual(self) -> bool:
        """Whether the estimate's error is of the usual size."""
        return self.needed <= USUAL * self.expected

    @property
    def limit(self) -> int:
        """The bytes that the set may take now."""
        usual = min(self.written + self.floor_room, USUAL * self.expected) if self.is_usual else 0
        return max(self.written + self.room, usual)

    @property
    def is_hopeless(self) -> bool:
        """Whether hot can never hold the set; only a set far beyond its estimate can be hopeless.

        A disk that is full of other sets, or of files that are not Stoker's, convicts no file.
        """
        return not self.is_usual and self.needed * HOPELESS > self.most


def decide_growth(growth: Growth) -> int | None:
    """Returns the new claim of a build that asks for room; None where its partial set is given up."""
    if growth.needed > growth.limit:
        return None
    return min(growth.limit, max(growth.needed, growth.claimed * USUAL, growth.claimed + STEP_BYTES))
