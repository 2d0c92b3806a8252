"""Sums over all sources, updated with each change, so that no reader has to pass over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from stoker.corpus.records.books import SPLITS, Books
from stoker.corpus.records.sources import PUBLISHED, Source, SourceState


@dataclass(slots=True)
class Amount:
    """Shard sets, the tokens and documents in them, and the bytes of their sources' files."""

    sets: int = 0
    tokens: int = 0
    documents: int = 0
    parquet_bytes: int = 0

    def add(self, sign: int, tokens: int, documents: int, parquet_bytes: int) -> None:
        """Adds one set, or takes one away with a sign of -1."""
        self.sets += sign
        self.tokens += sign * tokens
        self.documents += sign * documents
        self.parquet_bytes += sign * parquet_bytes


@dataclass(slots=True)
class Sums:
    """Sources and their files' bytes by state; documents, tokens and dropped rows of the published sets."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    dropped: dict[str, int] = field(default_factory=dict)
    hot: Amount = field(default_factory=Amount)
    warm: Amount = field(default_factory=Amount)  # the sets with a proven copy on warm
    evicted: Amount = field(default_factory=Amount)  # the sets on warm only
    # The sets that show the ratio of set bytes to file bytes.
    measured: Amount = field(default_factory=Amount)
    imported: int = 0
    undocumented: int = 0  # imported sets whose number of documents is not known

    def count(self, source: Source, sign: int) -> None:
        """Adds (1) or takes away (-1) a source."""
        # Written for speed: a daemon with 50,000 sources calls this 50,000 times before its first decision.
        state, size, books = source.state, source.size, source.books
        self.states[state] += sign
        if source.has_file:
            self.bytes[state] += sign * size
        if state not in PUBLISHED:
            return
        documents, tokens = self._count_books(books, sign)
        if source.imported:
            self.imported += sign
            self.undocumented += sign * (books is not None and books.documents is None)
        elif size:
            self.measured.add(sign, tokens, documents, size)
        (self.evicted if source.evicted else self.hot).add(sign, tokens, documents, size)
        if source.on_warm:
            self.warm.add(sign, tokens, documents, size)

    def _count_books(self, books: Books | None, sign: int) -> tuple[int, int]:
        """Adds the books and returns documents and tokens; counts that an import did not give are 0."""
        if books is None:
            return 0, 0
        self.documents["train"] += sign * (books.train_documents or 0)
        self.tokens["train"] += sign * books.train_tokens
        self.documents["val"] += sign * (books.val_documents or 0)
        self.tokens["val"] += sign * books.val_tokens
        for reason, rows in books.dropped or ():
            left = self.dropped.get(reason, 0) + sign * rows
            if left:
                self.dropped[reason] = left
            else:
                self.dropped.pop(reason, None)
        return books.documents or 0, books.tokens
