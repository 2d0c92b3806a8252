"""The books of a shard set, as source records and manifests hold them: rows, documents, tokens, drops."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of one published set; an imported set has None where the import did not count."""

    rows: int | None  # that were read from the source
    documents: int | None  # that were kept
    chars: int | None  # of the source's text
    tokens: int
    train_documents: int | None
    train_tokens: int
    val_documents: int | None  # of the held-out split
    val_tokens: int
    dropped: tuple[tuple[str, int], ...] | None  # rows by reason, as pairs: 50,000 mappings take 4 MB more

    @classmethod
    def from_mapping(cls, books: Mapping[str, Any]) -> Books:
        """Parses a record's or manifest's books; raises KeyError or TypeError where a count is missing."""
        train, val, dropped = books["train"], books["val"], books["dropped"]
        return cls(  # by position, for speed: a daemon parses 50,000 of them at its start
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

    @property
    def is_imported(self) -> bool:
        """Whether the set was imported as tokens, so that its source's rows were never read."""
        return self.rows is None

    def of(self, split: str) -> tuple[int | None, int]:
        """Returns documents and tokens of a split."""
        if split == "train":
            return self.train_documents, self.train_tokens
        return self.val_documents, self.val_tokens

    def plus(self, counted: Mapping[str, int], dropped: Mapping[str, int] = {}) -> Books:
        """Returns these books with counts added; `counted` has the names of fields by split."""
        sums = {name: getattr(self, name) + more for name, more in counted.items()}
        drops = Counter(dict(self.dropped or ())) + Counter(dropped)
        books = replace(self, **sums, dropped=tuple(sorted(drops.items())))
        documents = (books.train_documents or 0) + (books.val_documents or 0)
        return replace(books, documents=documents, tokens=books.train_tokens + books.val_tokens)

    def flaw(self) -> str:
        """Returns why these counts cannot be true; empty where they balance."""
        dropped = [rows for _, rows in self.dropped or ()]
        documents = [self.documents, self.train_documents, self.val_documents]
        tokens = [self.tokens, self.train_tokens, self.val_tokens]
        for count in (self.rows, self.chars, *tokens, *documents, *dropped):
            if count is not None and (type(count) is not int or count < 0):
                return f"{count!r} is no count"
        unknown = [self.rows, self.chars, self.dropped].count(None)
        counted = [each for each in documents if each is not None]
        is_summed = len(counted) == 3 and counted[0] == counted[1] + counted[2]
        if not is_summed and (counted or unknown != 3):
            return "documents are not the sum of train and val"
        if unknown not in (0, 3) or self.tokens != self.train_tokens + self.val_tokens:
            return "tokens are not the sum of train and val"
        if self.rows is not None and self.rows != counted[0] + sum(dropped):
            return f"{self.rows} rows are not {counted[0]} documents + {sum(dropped)} dropped"
        return ""

    def to_mapping(self) -> dict[str, Any]:
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
    """Returns the tokens of a split; 0 without books."""
    return 0 if books is None else books.of(split)[1]


EMPTY = Books(0, 0, 0, 0, 0, 0, 0, 0, ())
