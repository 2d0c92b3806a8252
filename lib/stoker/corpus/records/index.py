"""The sources by path, with indexes for the questions that the stage-shard loop's decisions ask.

With 50,000 sources a pass over all of them takes longer than a cycle of the loop may take. Only a few sources
are in work at any time, so the decisions look at those, and sums are updated with each change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import chain
from typing import get_args

from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source, SourceState
from stoker.corpus.records.sums import Sums

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
