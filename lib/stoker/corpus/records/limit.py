"""`dataset.limit`: which files of a listing a bounded slice takes, whatever order they were built in.

A slice takes whole files in listing order until their rows, or their tokens, reach the limit. How much a file
counts is known when it has come to its end, so the slice is settled file by file from the listing's front: a
file behind one that is still open is neither in nor out. A content counts where it is listed first, under
whichever path it was built; a quarantined file counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from stoker.config.schema import Limit
from stoker.corpus.records.books import Books
from stoker.corpus.records.sources import PUBLISHED, Source


@dataclass(frozen=True)
class Slice:
    """`paths` are in the slice for certain, in listing order; `settled`: of what is known, nothing else is.

    `full`: a limit of rows or tokens is reached, so that no file to come can change it. `beyond` holds every
    path that is left out. `stayed` are those that the limit alone would leave out. `taken` is what the files
    in the slice hold of each thing that is limited.
    """

    paths: tuple[str, ...]
    settled: bool
    full: bool
    beyond: Container[str]
    stayed: tuple[str, ...]
    taken: Mapping[str, int]


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
    tally = _Tally(sources, limit)
    paths: set[str] = set()
    stayed: list[str] = []
    settled = True
    for path in order:
        if not settled or tally.full or path not in files:
            if path not in kept:
                continue
            stayed.append(path)
        if (owner := tally.add(path)) is None:
            settled = settled and not tally.most  # with files alone to count, an open one hides nothing
        # A content is trained on through the path that has its shard set, wherever that stands.
        paths |= {path, owner or path}
    full = settled and tally.full
    beyond: Container[str] = _Outside(paths)
    if not settled:  # what stands behind the open file may still come in, unless it is one file too many
        beyond = _Outside(paths | files) if limit.files else ()
    return Slice(tuple(sorted(paths)), settled, full, beyond, tuple(stayed), dict(tally.taken))


class _Tally:
    """Adds up what files hold, each content once."""

    def __init__(self, sources: Mapping[str, Source], limit: Limit) -> None:
        self._sources = sources
        self._owners = {one.sha256: one for one in sources.values() if one.state in PUBLISHED}
        self._seen: set[str] = set()
        self.most = {name: most for name, most in (("rows", limit.rows), ("tokens", limit.tokens)) if most}
        self.taken = dict.fromkeys(self.most, 0)

    @property
    def full(self) -> bool:
        """Whether a limit is reached."""
        return any(self.taken[name] >= most for name, most in self.most.items())

    def add(self, path: str) -> str | None:
        """Count a path's content; the path that has its shard set, or its own for one without; None: open."""
        source = self._sources.get(path)
        if source is not None and source.state == "quarantined":
            return path
        owner = None if source is None else self._owners.get(source.sha256)
        if owner is not None and owner.sha256 not in self._seen:
            self._seen.add(owner.sha256)
            for name in self.most:
                self.taken[name] += 0 if owner.books is None else _AMOUNT[name](owner.books)
        return None if owner is None else owner.path


_AMOUNT: Mapping[str, Callable[[Books], int]] = {
    "rows": lambda books: books.rows or 0,
    "tokens": lambda books: books.train_tokens + books.val_tokens,
}
