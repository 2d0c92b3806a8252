"""The receipts of files that were fetched, or could not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stokerd.download.fetcher import Wish


def verified(dataset: str, file: str, wish: Wish, done: Mapping[str, Any]) -> Receipt:
    """Of a file that is here and true, as far as anything tells; `done` is the worker's word."""
    return Receipt(
        dataset=dataset,
        path=wish.wanted.path,
        file=file,
        size=int(done["size"]),
        sha256=str(done["sha256"]),
        revision=wish.revision,
        etag=wish.wanted.identity,
        state="unproven" if done["unproven"] else "verified",
    )


def given_up(dataset: str, file: str, wish: Wish) -> Receipt:
    """Of a file that could not be brought."""
    wanted = wish.wanted
    return Receipt(
        dataset=dataset,
        path=wanted.path,
        file=file,
        size=wanted.size or 0,
        sha256=wanted.sha256 or "",
        revision=wish.revision,
        etag=wanted.identity,
        state="given_up",
    )
