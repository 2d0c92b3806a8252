"""The books of a shard set, as source records hold them: what it was made of, and what is in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of one published set; None for what an import does not tell.

    `rows` and `chars` are the source's, `dropped` its dropped rows by reason; documents and tokens are
    counted for the training and the held-out split, and in sum.
    """

    rows: int | None
    documents: int | None
    chars: int | None
    tokens: int
    train_documents: int | None
    train_tokens: int
    val_documents: int | None
    val_tokens: int
    dropped: tuple[tuple[str, int], ...] | None  # pairs: as mappings 50,000 would take 4 MB more

    @classmethod
    def from_mapping(cls, books: Mapping[str, Any]) -> Books:
        """Read them from a record or a manifest; raises KeyError or TypeError where a count is missing."""
        train, val, dropped = books["train"], books["val"], books["dropped"]
        return cls(  # by position: there are 50,000 of them to read while a daemon starts
            books["rows"],
            books["documents"],
            books["chars"],
            int(books["tokens"]),
            train["documents"],
            int(train["tokens"]),
            val["documents"],
            int(val["tokens"]),
            None if dropped is None else tuple((sys.intern(why), int(rows)) for why, rows in dropped.items()),
        )

    def to_mapping(self) -> dict[str, Any]:
        """As a record or a manifest holds them."""
        return {
            "rows": self.rows,
            "documents": self.documents,
            "dropped": None if self.dropped is None else dict(self.dropped),
            "chars": self.chars,
            "tokens": self.tokens,
            "train": {"documents": self.train_documents, "tokens": self.train_tokens},
            "val": {"documents": self.val_documents, "tokens": self.val_tokens},
        }


def tokens_of(books: Books | None, split: str) -> int:
    """Tokens of a split; 0 before there are books."""
    if books is None:
        return 0
    return books.train_tokens if split == "train" else books.val_tokens
