"""`dataset.limit`: which files of a listing a bounded slice takes, independent of the order of builds.

A slice takes whole files in listing order until their rows or their tokens reach the limit. The counts of a
file are known when its source reaches a terminal state, so the slice is settled file by file from the front
of the listing: a file behind an open file is neither in nor out. A content counts at the place where it is
listed first, under whichever path it was built; a quarantined file counts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from stoker.config.schema import Limit
from stoker.corpus.records.sources import PUBLISHED, Source


@dataclass(frozen=True)
class Slice:
    """A slice as far as it is known."""

    paths: tuple[str, ...]  # certainly in the slice, in listing order
    settled: bool  # no other known path can come in
    full: bool  # a limit of rows or tokens is reached: no file that appears later can change the slice
    beyond: Container[str]  # every path that is left out
    stayed: tuple[str, ...]  # in the slice only because they were in it before


@dataclass(frozen=True)
class _Outside:
    """The set of all paths except these."""

    inside: Collection[str]

    def __contains__(self, path: object) -> bool:
        return path not in self.inside


def is_bounded(limit: Limit) -> bool:
    return limit != Limit()


def slice_of(
    listed: Collection[str],
    sources: Mapping[str, Source],
    limit: Limit,
    *,
    kept: Iterable[str] = (),
) -> Slice:
    """Returns the slice of the listed paths, as far as the sources in a terminal state settle it.

    `kept` are paths that were in the slice before and are in a terminal state: they stay, whatever the limit
    is now, because a plan may name them; they count like all paths.
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
            settled = settled and not (limit.rows or limit.tokens)  # a limit of files needs no counts
            continue
        paths.add(owner.path)  # training reads a content through the path that has its set, listed or not
        if owner.sha256 not in counted and owner.books is not None:
            rows += owner.books.rows or 0
            tokens += owner.books.train_tokens + owner.books.val_tokens
        counted.add(owner.sha256)
        full = bool(limit.rows and rows >= limit.rows) or bool(limit.tokens and tokens >= limit.tokens)
    beyond: Container[str] = _Outside(paths)
    if not settled:  # a file behind the open file may still come in, unless the limit of files excludes it
        beyond = _Outside(paths | files) if limit.files else ()
    return Slice(tuple(sorted(paths)), settled, settled and full, beyond, tuple(stayed))
