"""The sources by path, and what the decisions ask of them, kept up to date with each that changes.

With 50,000 sources a look at all of them takes longer than a turn of the loop may. Only a few are on their
way at any time, so the decisions ask for those, and sums are carried along.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import chain
from typing import get_args

from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source, SourceState
from stoker.corpus.records.sums import Sums

OPEN: tuple[SourceState, ...] = ("seen", "staged", "building")
KEY16 = 16  # digits of a shard set's key that its directory is called by
KeyOf = Callable[[str], str]


class Catalog(dict[str, Source]):
    """Sources by path; changed through put() and drop() alone.

    `changes` counts them. `waiting` are the paths of state `seen` in listing order; `unsynced` those whose
    set is on hot to stay and has no proven copy on warm; `evicting` those with the intent to evict; `formers`
    those of contents that a file had before, `imported` those of tokens that were taken over.
    """

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        super().__init__()
        self.changes = 0
        self.sums = Sums()
        self.waiting: list[str] = []
        self.unsynced: dict[str, None] = {}
        self.evicting: dict[str, None] = {}
        self.formers: dict[str, None] = {}
        self.imported: dict[str, None] = {}
        self._states: dict[SourceState, dict[str, None]] = {state: {} for state in get_args(SourceState)}
        self._contents: dict[str, str | tuple[str, ...]] = {}
        self._unsettled: dict[str, None] = {}
        self._owned: dict[str, str] = {}  # path by the first digits of its set's key
        self._key_of: KeyOf | None = None
        self._open: dict[str, str] = {}  # content by the first digits of its key, of what has no set yet
        self._evicted: dict[str, str] = {}  # path by the first digits of its set's key
        for source in () if sources is None else sources.values():
            self._enter(source)
        self.waiting = sorted(self._states["seen"])

    def put(self, source: Source) -> None:
        """Take in a new source, or another state of one."""
        if source.path in self:
            self._leave(self[source.path])
        self._enter(source)
        if source.state == "seen":
            insort(self.waiting, source.path)

    def drop(self, path: str) -> None:
        """Forget a source."""
        self._leave(self.pop(path))

    def in_state(self, *states: SourceState) -> list[Source]:
        """The sources in these states, state by state."""
        return [self[path] for state in states for path in self._states[state]]

    def count(self, *states: SourceState) -> int:
        """How many are in these states."""
        return sum(len(self._states[state]) for state in states)

    @property
    def ended(self) -> Iterable[str]:
        """The paths that came to their end."""
        return chain.from_iterable(self._states[state] for state in sorted(TERMINAL))

    # By content

    def with_content(self, sha256: str) -> tuple[str, ...]:
        """The paths of this content, in listing order."""
        paths = self._contents.get(sha256, ())
        return (paths,) if isinstance(paths, str) else paths

    def owner(self, sha256: str) -> str | None:
        """The path whose shard set stands for a content."""
        return next((path for path in self.with_content(sha256) if self[path].state in PUBLISHED), None)

    @property
    def unsettled(self) -> list[tuple[str, ...]]:
        """The paths of each content of which one waits although there is a set, or is a duplicate although
        there is none."""
        return [self.with_content(sha256) for sha256 in self._unsettled]

    # By key

    def of_key(self, key16: str) -> str | None:
        """The path whose published set has a key with these first digits."""
        return self._owned.get(key16)

    def left_behind(self, keys: Set[str]) -> list[str]:
        """The paths of those of these sets (first digits of keys) that by their record are on warm only."""
        return sorted(self._evicted[key] for key in self._evicted.keys() & keys)

    def open_with(self, keys: Set[str], key_of: KeyOf) -> list[str]:
        """The paths without a set whose set would be called by one of these, in listing order."""
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
        # Of what could not be fetched it may not be known.
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
