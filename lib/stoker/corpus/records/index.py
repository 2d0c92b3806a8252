"""The sources by path, with indexes and sums for the decisions and the status of the stage-shard loop.

With 50,000 sources a pass over all of them takes longer than a cycle of the loop may take. Only a few sources
are in work at any time, so the decisions look at those, and indexes and sums are updated with each change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import get_args

from stoker.corpus.records.sources import PUBLISHED, SPLITS, TERMINAL, Books, Source, SourceState


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


OPEN: tuple[SourceState, ...] = ("seen", "staged", "building")
KEY16 = 16  # digits of a shard set's key: the name of its directory
KeyOf = Callable[[str], str]


class Catalog(dict[str, Source]):
    """Sources by path with their indexes; changed only through put() and drop()."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        super().__init__()
        self.changes = 0  # how many so far
        self.sums = Sums()
        self.waiting: list[str] = []  # paths of sources in state `seen`, in listing order
        self.unsynced: dict[str, None] = {}  # the set stays on hot and has no proven copy on warm
        self.evicting: dict[str, None] = {}  # the record holds the intent to evict
        self.formers: dict[str, None] = {}  # sources of a content that a file had before
        self.imported: dict[str, None] = {}  # sources whose set was imported as tokens
        self._states: dict[SourceState, dict[str, None]] = {state: {} for state in get_args(SourceState)}
        self._contents: dict[str, str | tuple[str, ...]] = {}
        self._unsettled: dict[str, None] = {}
        self._owned: dict[str, str] = {}  # path by the first digits of its published set's key
        self._key_of: KeyOf | None = None
        self._open: dict[str, str] = {}  # content without a set, by the first digits of its key
        self._evicted: dict[str, str] = {}  # path by the first digits of its evicted set's key
        for source in () if sources is None else sources.values():
            self._enter(source)
        self.waiting = sorted(self._states["seen"])

    def put(self, source: Source) -> None:
        """Adds a source, or replaces it by its new version."""
        if source.path in self:
            self._leave(self[source.path])
        self._enter(source)
        if source.state == "seen":
            insort(self.waiting, source.path)

    def drop(self, path: str) -> None:
        self._leave(self.pop(path))

    def in_state(self, *states: SourceState) -> list[Source]:
        """Returns the sources in these states, state by state."""
        return [self[path] for state in states for path in self._states[state]]

    def count(self, *states: SourceState) -> int:
        """Returns how many sources are in these states."""
        return sum(len(self._states[state]) for state in states)

    @property
    def ended(self) -> Iterable[str]:
        """The paths of the sources in a terminal state."""
        return chain.from_iterable(self._states[state] for state in sorted(TERMINAL))

    # By content

    def with_content(self, sha256: str) -> tuple[str, ...]:
        """Returns the paths of this content, in listing order."""
        paths = self._contents.get(sha256, ())
        return (paths,) if isinstance(paths, str) else paths

    def owner(self, sha256: str) -> str | None:
        """Returns the path whose published shard set has this content."""
        return next((path for path in self.with_content(sha256) if self[path].state in PUBLISHED), None)

    @property
    def unsettled(self) -> list[tuple[str, ...]]:
        """The paths of each content that has an open source and a set, or a duplicate and no set."""
        return [self.with_content(sha256) for sha256 in self._unsettled]

    # By key

    def of_key(self, key16: str) -> str | None:
        """Returns the path whose published set has a key with these first digits."""
        return self._owned.get(key16)

    def left_behind(self, keys: Set[str]) -> list[str]:
        """Returns the paths of those sets (first digits of keys) that are on warm only by their record."""
        return sorted(self._evicted[key] for key in self._evicted.keys() & keys)

    def open_with(self, keys: Set[str], key_of: KeyOf) -> list[str]:
        """Returns the open paths, in listing order, whose set will have a key with these first digits."""
        if not keys:
            return []
        if self._key_of is not key_of:
            self._key_of = key_of
            opened = self.in_state(*OPEN)
            self._open = {key_of(source.sha256)[:KEY16]: source.sha256 for source in opened}
        found = (self.with_content(self._open[key]) for key in self._open.keys() & keys)
        unowned = (paths for paths in found if all(self[path].state not in PUBLISHED for path in paths))
        return sorted(path for paths in unowned for path in paths if self[path].state in OPEN)

    # Keeping up to date

    def _enter(self, source: Source) -> None:
        path, state, content = source.path, source.state, source.sha256
        self[path] = source
        self.changes += 1
        self._states[state][path] = None
        # The content of a source that could not be fetched may be unknown.
        others = self._contents.setdefault(content, path) if content else path
        if others is not path:
            self._contents[content] = tuple(sorted({*self.with_content(content), path}))
        if state == "duplicate" or len(self.with_content(content)) > 1:
            self._weigh(content)
        if source.former is not None:
            self.formers[path] = None
        if source.imported:
            self.imported[path] = None
        if state in PUBLISHED:
            if source.key is not None:
                self._owned.setdefault(source.key[:KEY16], path)
                if source.evicted:
                    self._evicted[source.key[:KEY16]] = path
            if source.evicting:
                self.evicting[path] = None
            if source.hot and not source.on_warm:
                self.unsynced[path] = None
        elif self._key_of is not None and state in OPEN:
            self._open[self._key_of(content)[:KEY16]] = content
        self.sums.count(source, 1)

    def _leave(self, source: Source) -> None:
        path, content = source.path, source.sha256
        self.changes += 1
        del self._states[source.state][path]
        if source.state == "seen":
            del self.waiting[bisect_left(self.waiting, path)]
        others = tuple(other for other in self.with_content(content) if other != path)
        if others:
            self._contents[content] = others[0] if len(others) == 1 else others
        else:
            self._contents.pop(content, None)
        if others or self._unsettled:
            self._weigh(content)
        for marked in (self.evicting, self.unsynced, self.formers, self.imported):
            marked.pop(path, None)
        key = str(source.key)[:KEY16]
        heirs = [self[other] for other in others if self[other].key == source.key]
        heirs = [heir for heir in heirs if heir.state in PUBLISHED]
        for index, left in ((self._owned, heirs), (self._evicted, [heir for heir in heirs if heir.evicted])):
            if index.get(key) == path:
                del index[key]
                index.update((key, heir.path) for heir in left)
        if self._key_of is not None and source.state in OPEN and not others:
            self._open.pop(self._key_of(content)[:KEY16], None)
        self.sums.count(source, -1)

    def _weigh(self, content: str) -> None:
        states = [self[path].state for path in self.with_content(content) if path in self]
        owned = not PUBLISHED.isdisjoint(states)
        if any(state in OPEN for state in states) if owned else "duplicate" in states:
            self._unsettled[content] = None
        else:
            self._unsettled.pop(content, None)
