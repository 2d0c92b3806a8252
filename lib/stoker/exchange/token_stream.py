"""A stream of tokens on its way in: its pieces, and the documents that end-of-text makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.store.errors import DataError

MOST_TOKENS = 1 << 24  # in a document: it is held in memory until its end is found

Tokens = npt.NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a file; `row_ends` only where each row has to be whole documents."""

    file: Path
    values: Tokens
    first: int  # the number in the file of its first token, or row
    row_length: int | None = None
    row_ends: Tokens | None = None

    def place(self, index: int) -> str:
        """Names file and row, or token, of a value by its index here."""
        if self.row_ends is not None:
            return self.row(int(np.searchsorted(self.row_ends, index, "right")))
        if self.row_length is not None:
            return self.row(index // self.row_length)
        return f"{self.file}: token {self.first + index}"

    def row(self, number: int) -> str:
        """Names file and row by the row's number here."""
        return f"{self.file}: row {self.first + number}"


class TokenSource(Protocol):
    """A file of tokens; `tokens` says how many they are at most."""

    @property
    def tokens(self) -> int: ...

    def pieces(self) -> Iterator[Piece]:
        """Yields its tokens in order; raises DataError, StorageError."""


@dataclass(frozen=True)
class TokenFiles:
    """The files of a place, which are one stream in this order."""

    files: tuple[TokenSource, ...]
    tokenizer: str | None = None  # the hash that the place gives
    notes: tuple[str, ...] = ()  # on files that are passed over


class Documents:
    """Cuts a stream into documents, each with its end-of-text (`eot`) behind it.

    A stream that begins with end-of-text has it before each document. With `cut`, a text of more tokens
    is cut into documents of so many; without it, one that never ends is refused.
    """

    def __init__(self, eot: int, dtype: np.dtype[Any], cut: int | None) -> None:
        self._eot, self._cut = eot, cut
        self._is_before: bool | None = None  # known from the first token on
        self._rest: Tokens = np.empty(0, dtype)  # of the document that has no end yet
        self._rest_from = ""  # the file and the place where that document begins
        self._has_ends = False

    def take(self, piece: Piece) -> tuple[Tokens, Tokens]:
        """Returns the documents that have an end now: their tokens, and where each ends in them."""
        values, skipped = piece.values, 0
        if self._is_before is None:
            self._is_before = self._ends_come_before(piece)
            self._has_ends, skipped = self._is_before, int(self._is_before)
        if piece.row_ends is not None:
            self._check_rows(piece, piece.row_ends)
        held = self._rest.size - skipped
        stream = np.concatenate([self._rest, values[skipped:]])
        if not self._rest.size and stream.size:
            self._rest_from = piece.place(skipped)
        stream = self._with_cuts(stream)
        ends = np.flatnonzero(stream == self._eot) + 1
        whole = int(ends[-1]) if ends.size else 0
        self._rest = stream[whole:].copy()
        self._has_ends |= whole > 0
        if self._cut is None:
            if whole and self._rest.size:
                self._rest_from = piece.place(whole - held)
            if self._rest.size > MOST_TOKENS:
                raise self._without_end()
        return stream[:whole], ends

    def finish(self) -> tuple[Tokens, Tokens]:
        """Returns the last document, which gets the end-of-text that it lacks at the end of the stream."""
        if not self._rest.size and not self._is_before:
            return self._rest, np.empty(0, np.int64)
        if not self._has_ends and self._cut is None:
            raise self._without_end()
        return np.append(self._rest, self._rest.dtype.type(self._eot)), np.array([self._rest.size + 1])

    def _ends_come_before(self, piece: Piece) -> bool:
        if piece.row_ends is None or not piece.values.size:
            return bool(piece.values[:1] == self._eot)
        # By most of the first rows: the odd one among them is then the one that is named.
        after, before = (
            self._row_flaws(piece.values, piece.row_ends, is_before=way) for way in (False, True)
        )
        return int(before.sum()) < int(after.sum())

    def _row_flaws(self, values: Tokens, ends: Tokens, *, is_before: bool) -> Tokens:
        """Returns which rows do not begin, or else end, with end-of-text."""
        lengths = np.diff(ends, prepend=0)
        if not values.size:
            return np.asarray(lengths == 0)
        edges = np.minimum(ends - lengths, values.size - 1) if is_before else ends - 1
        return np.asarray((lengths == 0) | (values[edges] != self._eot))

    def _check_rows(self, piece: Piece, ends: Tokens) -> None:
        flaws = np.flatnonzero(self._row_flaws(piece.values, ends, is_before=bool(self._is_before)))
        if flaws.size:
            edge = "begin" if self._is_before else "end"
            raise DataError(
                f"{piece.row(int(flaws[0]))} does not {edge} with end-of-text (id {self._eot}); put "
                "it behind each document. Where the rows are pieces of one stream, save the column with a "
                "fixed length (datasets.Sequence(..., length=N)), then it is cut at end-of-text alone"
            )

    def _with_cuts(self, stream: Tokens) -> Tokens:
        """Returns the stream with end-of-text behind each `cut` tokens that have none."""
        if self._cut is None:
            return stream
        ends = np.append(np.flatnonzero(stream == self._eot), stream.size)
        starts = np.append(0, ends[:-1] + 1)
        long = np.flatnonzero(ends - starts > self._cut)
        cuts = [np.arange(starts[one] + self._cut, ends[one], self._cut) for one in long]
        return np.insert(stream, np.concatenate(cuts), self._eot) if cuts else stream

    def _without_end(self) -> DataError:
        return DataError(
            f"{self._rest_from} begins a text of {self._rest.size:,} tokens without end-of-text "
            f"(id {self._eot}); is this the tokenizer that made it? If it is, --document-tokens N cuts such "
            "a text into documents of N tokens"
        )
