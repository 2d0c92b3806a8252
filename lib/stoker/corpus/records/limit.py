"""`dataset.limit`: which files of a listing a bounded slice takes, whatever order they were built in.

A slice takes whole files in listing order until their rows, or their tokens, reach the limit. How much a file
counts is known when it has come to its end, so the slice is settled file by file from the listing's front: a
file behind one that is still open is neither in nor out. A content counts where it is listed first, under
whichever path it was built; a quarantined file counts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from stoker.config.schema import Limit
from stoker.corpus.records.sources import PUBLISHED, Source


@dataclass(frozen=True)
class Slice:
    """`paths` are in the slice for certain, in listing order; `settled`: of what is known, nothing else is.

    `full`: a limit of rows or tokens is reached, so that no file to come can change it. `beyond` holds every
    path that is left out. `stayed` are those that the limit alone would leave out.
    """

    paths: tuple[str, ...]
    settled: bool
    full: bool
    beyond: Container[str]
    stayed: tuple[str, ...]


@dataclass(frozen=True)
class _Outside:
    """All paths but these."""

    inside: Collection[str]

    def __contains__(self, path: object) -> bool:
        return path not in self.inside


def is_bounded(limit: Limit) -> bool:
    """Whether anything is limited at all."""
    return limit != Limit()


def slice_of(
    listed: Collection[str],
    sources: Mapping[str, Source],
    limit: Limit,
    *,
    kept: Iterable[str] = (),
) -> Slice:
    """The slice of the listed paths, as far as the sources that have come to their end tell it.

    `kept` are paths that were in the slice before and have come to their end: they stay, whatever the limit
    is now, for a plan may name them; they count like the others.
    """
    kept = frozenset(kept)
    order = sorted({*listed, *kept})
    files = frozenset(order[: limit.files]) if limit.files else frozenset(order)
    owners = {one.sha256: one for one in sources.values() if one.state in PUBLISHED}
    counted: set[str] = set()
    paths: set[str] = set()
    stayed: list[str] = []
    rows = tokens = 0
    settled, full = True, False
    for path in order:
        if not settled or full or path not in files:
            if path not in kept:
                continue
            stayed.append(path)
        paths.add(path)
        source = sources.get(path)
        if source is not None and source.state == "quarantined":
            continue
        owner = None if source is None else owners.get(source.sha256)
        if owner is None:
            settled = settled and not (limit.rows or limit.tokens)  # an open file hides no number of files
            continue
        paths.add(owner.path)  # a content is trained on through the path that has its set, wherever that is
        if owner.sha256 not in counted and owner.books is not None:
            rows += owner.books.rows or 0
            tokens += owner.books.train_tokens + owner.books.val_tokens
        counted.add(owner.sha256)
        full = bool(limit.rows and rows >= limit.rows) or bool(limit.tokens and tokens >= limit.tokens)
    beyond: Container[str] = _Outside(paths)
    if not settled:  # what stands behind the open file may still come in, unless it is one file too many
        beyond = _Outside(paths | files) if limit.files else ()
    return Slice(tuple(sorted(paths)), settled, settled and full, beyond, tuple(stayed))
