"""The sources by path, with indexes and sums for the decisions and the status of the stage-shard loop.

With 50,000 sources a pass over all of them takes longer than a cycle of the loop may take. Only a few sources
are in work at any time, so the decisions look at those, and indexes and sums are updated with each change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import get_args

from stoker.corpus.records.sources import KEY16, OPEN, PUBLISHED, SPLITS, Books, Source, SourceState

KeyOf = Callable[[str], str]
NO_BOOKS = Books(0, 0, 0, 0, 0, 0, 0, 0, ())


@dataclass(slots=True)
class Amount:
    """Shard sets, the tokens and documents in them, and the bytes of their sources' files."""

    sets: int = 0
    tokens: int = 0
    documents: int = 0
    parquet_bytes: int = 0

    def add(self, source: Source, sign: int) -> None:
        """Adds (1) or takes away (-1) a source's set; counts that an import did not give are 0."""
        books = source.books or NO_BOOKS
        self.sets += sign
        self.tokens += sign * books.tokens
        self.documents += sign * (books.documents or 0)
        self.parquet_bytes += sign * source.size


@dataclass(slots=True)
class Sums:
    """Sources and their files' bytes by state; documents, tokens and dropped rows of the published sets."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(SourceState), 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    dropped: Counter[str] = field(default_factory=Counter)
    hot: Amount = field(default_factory=Amount)
    warm: Amount = field(default_factory=Amount)  # the sets with a proven copy on warm
    evicted: Amount = field(default_factory=Amount)  # the sets on warm only
    # The sets that show the ratio of set bytes to file bytes.
    measured: Amount = field(default_factory=Amount)
    imported: int = 0  # sets that an earlier version imported as tokens

    def count(self, source: Source, sign: int) -> None:
        """Adds (1) or takes away (-1) a source."""
        self.states[source.state] += sign
        if source.has_file:
            self.bytes[source.state] += sign * source.size
        if source.state not in PUBLISHED:
            return
        books = source.books or NO_BOOKS
        for split in SPLITS:
            documents, tokens = books.of(split)
            self.documents[split] += sign * (documents or 0)
            self.tokens[split] += sign * tokens
        for reason, rows in books.dropped or ():
            self.dropped[reason] += sign * rows
        if source.imported:
            self.imported += sign
        elif source.size:
            self.measured.add(source, sign)
        (self.evicted if source.evicted else self.hot).add(source, sign)
        if source.on_warm:
            self.warm.add(source, sign)


class Catalog(dict[str, Source]):
    """Sources by path with their indexes; changed only through put() and drop()."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        super().__init__()
        self.changes = 0  # how many so far
        self.sums = Sums()
        self.unsynced: dict[str, None] = {}  # the set stays on hot and has no proven copy on warm
        self.evicting: dict[str, None] = {}  # the record holds the intent to evict
        self.formers: dict[str, None] = {}  # sources of a content that a file had before
        self.imported: dict[str, None] = {}  # sources whose set an earlier version imported as tokens
        self._states: dict[SourceState, dict[str, None]] = {state: {} for state in get_args(SourceState)}
        self._contents: dict[str, tuple[str, ...]] = {}  # paths in listing order
        self._unsettled: dict[str, None] = {}
        # By the first digits of a set's key: the paths of published and of evicted sets, the open contents.
        self._published: dict[str, str] = {}
        self._evicted: dict[str, str] = {}
        self._open: dict[str, str] = {}
        self._key_of: KeyOf | None = None
        for source in () if sources is None else sources.values():
            self.put(source)

    def put(self, source: Source) -> None:
        """Adds a source, or replaces it by its new version."""
        path, content = source.path, source.sha256
        if path in self:
            self._leave(self[path])
        self[path] = source
        self.changes += 1
        if content:  # the content of a source that could not be fetched may be unknown
            self._contents[content] = tuple(sorted((*self.with_content(content), path)))
        self._mark(source)
        self._weigh(content)
        self.sums.count(source, 1)

    def drop(self, path: str) -> None:
        self._leave(self[path])
        del self[path]
        self.changes += 1

    def in_state(self, *states: SourceState) -> list[Source]:
        """Returns the sources in these states, state by state."""
        return [self[path] for state in states for path in self._states[state]]

    def count(self, *states: SourceState) -> int:
        """Returns how many sources are in these states."""
        return sum(len(self._states[state]) for state in states)

    @property
    def waiting(self) -> list[str]:
        """The paths of the sources in state `seen`, in listing order."""
        return sorted(self._states["seen"])

    def with_content(self, sha256: str) -> tuple[str, ...]:
        """Returns the paths of this content, in listing order."""
        return self._contents.get(sha256, ())

    def owner(self, sha256: str) -> str | None:
        """Returns the path whose published shard set has this content."""
        return next((path for path in self.with_content(sha256) if self[path].state in PUBLISHED), None)

    @property
    def unsettled(self) -> Iterator[tuple[str, ...]]:
        """The paths of each content that has an open source and a set, or a duplicate and no set."""
        return map(self.with_content, self._unsettled)

    def of_key(self, key16: str) -> str | None:
        """Returns the path whose published set has a key with these first digits."""
        return self._published.get(key16)

    def left_behind(self, keys: Set[str]) -> list[str]:
        """Returns the paths of those sets (first digits of keys) that are on warm only by their record."""
        return sorted(self._evicted[key] for key in self._evicted.keys() & keys)

    def open_with(self, keys: Set[str], key_of: KeyOf) -> list[str]:
        """Returns the open paths, in listing order, whose set will have a key with these first digits."""
        if self._key_of is not key_of:
            self._key_of = key_of
            self._open = {key_of(one.sha256)[:KEY16]: one.sha256 for one in self.in_state(*OPEN)}
        found = {self._open[key] for key in self._open.keys() & keys}
        paths = (path for one in found if self.owner(one) is None for path in self.with_content(one))
        return sorted(path for path in paths if self[path].state in OPEN)

    def _mark(self, source: Source) -> None:
        """Enters a source into the indexes by state, property and key."""
        path, state = source.path, source.state
        self._states[state][path] = None
        if source.former is not None:
            self.formers[path] = None
        if source.imported:
            self.imported[path] = None
        if state in PUBLISHED:
            self._published[source.key16] = path
            if source.evicted:
                self._evicted[source.key16] = path
            if source.evicting:
                self.evicting[path] = None
            if source.hot and not source.on_warm:
                self.unsynced[path] = None
        elif self._key_of is not None and state in OPEN:
            self._open[self._key_of(source.sha256)[:KEY16]] = source.sha256

    def _leave(self, source: Source) -> None:
        """Takes a source out of all indexes and sums."""
        path, content = source.path, source.sha256
        for marked in (self._states[source.state], self.formers, self.imported, self.evicting, self.unsynced):
            marked.pop(path, None)
        for keys in (self._published, self._evicted):
            keys.pop(source.key16, None)
        if self._key_of is not None:
            self._open.pop(self._key_of(content)[:KEY16], None)
        others = tuple(other for other in self.with_content(content) if other != path)
        self._contents.pop(content, None)
        if others:
            self._contents[content] = others
        for other in others:  # they have the same key
            self._mark(self[other])
        self._weigh(content)
        self.sums.count(source, -1)

    def _weigh(self, content: str) -> None:
        """Updates whether a content is unsettled."""
        states = {self[path].state for path in self.with_content(content)}
        if not states.isdisjoint(OPEN) if not states.isdisjoint(PUBLISHED) else "duplicate" in states:
            self._unsettled[content] = None
        else:
            self._unsettled.pop(content, None)
