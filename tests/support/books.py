"""Books of shard sets for tests that care about a few counts only."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.corpus.records.sources import Books


def books_of(
    train: int = 0,
    val: int = 0,
    documents: int = 0,
    rows: int | None = 0,
    dropped: Mapping[str, int] | None = None,
) -> Books:
    """Books with these tokens to train on and held out; all documents are the training split's."""
    return Books(rows, documents, 0, train + val, documents, train, 0, val, tuple((dropped or {}).items()))
