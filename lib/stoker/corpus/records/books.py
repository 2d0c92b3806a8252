"""The books of a shard set, as source records hold them: what it was made of, and what is in it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    @property
    def is_imported(self) -> bool:
        """Whether they are of tokens that were taken over: of their source nothing is known."""
        return self.rows is None

    def of(self, split: str) -> tuple[int | None, int]:
        """Documents and tokens of a split."""
        if split == "train":
            return self.train_documents, self.train_tokens
        return self.val_documents, self.val_tokens

    def plus(self, counted: Mapping[str, int], dropped: Mapping[str, int] = {}) -> Books:
        """These books of what was built, and what was counted since; documents and tokens by split."""
        sums = {name: getattr(self, name) + more for name, more in counted.items()}
        drops = Counter(dict(self.dropped or ())) + Counter(dropped)
        books = replace(self, **sums, dropped=tuple(sorted(drops.items())))
        documents = (books.train_documents or 0) + (books.val_documents or 0)
        return replace(books, documents=documents, tokens=books.train_tokens + books.val_tokens)

    def flaw(self) -> str:
        """Why these counts cannot be true, in words; empty where they balance."""
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
    return 0 if books is None else books.of(split)[1]


EMPTY = Books(0, 0, 0, 0, 0, 0, 0, 0, ())
