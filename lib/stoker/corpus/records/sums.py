"""What all sources come to: sums that each is added to and taken from, so that nobody goes through all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from stoker.corpus.records.books import SPLITS, Books
from stoker.corpus.records.sources import PUBLISHED, Source, SourceState


@dataclass(slots=True)
class Amount:
    """Shard sets, the tokens and the documents in them, and the bytes of their sources' files."""

    sets: int = 0
    tokens: int = 0
    documents: int = 0
    parquet_bytes: int = 0

    def add(self, sign: int, tokens: int, documents: int, parquet_bytes: int) -> None:
        """Count a set in, or with a sign of -1 out."""
        self.sets += sign
        self.tokens += sign * tokens
        self.documents += sign * documents
        self.parquet_bytes += sign * parquet_bytes


@dataclass(slots=True)
class Sums:
    """Sources and their files' bytes by state; documents, tokens and dropped rows of what is published.

    `hot` are the published sets on hot, `warm` those with a proven copy there, `evicted` those on warm only.
    `measured` are those that tell how large a set is beside its file. `imported` sets were taken over; of so
    many of them `undocumented` says that documents are not known.
    """

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    dropped: dict[str, int] = field(default_factory=dict)
    hot: Amount = field(default_factory=Amount)
    warm: Amount = field(default_factory=Amount)
    evicted: Amount = field(default_factory=Amount)
    measured: Amount = field(default_factory=Amount)
    imported: int = 0
    undocumented: int = 0

    def count(self, source: Source, sign: int) -> None:
        """Add (1) or take away (-1) a source."""
        # Written for speed: a daemon with 50,000 sources does this as often before its first decision.
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
        """Documents and tokens of the books; what an imported set's do not tell counts nothing."""
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
