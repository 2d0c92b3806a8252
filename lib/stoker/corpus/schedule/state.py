"""The input of the stage-shard loop's decisions: every known fact, and the limits of parallel work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source

AT_ONCE = 2  # jobs of each other kind


@dataclass(frozen=True)
class Limits:
    """How many jobs run at once; `queue_*` bound the staged files that wait for a builder."""

    stagers: int
    builders: int
    queue_files: int
    queue_bytes: int
    release: Literal["never", "after_proof", "after_sync"]


@dataclass(frozen=True)
class Action:
    """One step: a job of this kind on the path, or one of these changes of its records:

    restart: the path starts over, with the content that its receipt names.
    replace: its file has other content since its set was proven; the set stays, under the path's former name.
    give_up: its file could not be fetched; the run continues without it, until it arrives after all.
    give_up_content: the set of a former or imported content is gone, and no file has the content.
    duplicate: its content is that of `of`, which has a shard set.
    keep_hot: the intent to evict is withdrawn; the set is on hot still, and warm cannot be read now.
    """

    kind: str
    path: str
    of: str = ""


@dataclass(frozen=True)
class Room:
    """Bytes of a disk that jobs of one kind may take."""

    left: int | None  # None while the disk's room is not known
    needs: Callable[[Source], int]  # bytes for a job on a source
    first_goes: bool = False  # the first job may begin whatever its need


@dataclass(frozen=True)
class WarmContents:
    """The sets on warm, and those wanted from there: the input of the moves."""

    published: Set[str] = frozenset()  # first 16 digits of the keys of the sets on warm
    answers: bool = False
    writable: bool = False
    hydrate: Sequence[str] = ()  # the paths to bring back now
    wanted: frozenset[str] = frozenset()  # all paths that a run waits for
    rotten: Collection[str] = frozenset()  # keys whose copy on warm turned out wrong


@dataclass(frozen=True)
class Situation:
    """Every fact that a decision depends on; times are monotonic seconds."""

    receipts: Mapping[str, Receipt]
    sources: Catalog
    limits: Limits
    key_of: Callable[[str], str] | None = None  # a content's shard set key; None before the dataset is pinned
    published: Set[str] = frozenset()  # first 16 digits of the keys of the sets on hot
    busy: Mapping[str, str] = field(default_factory=dict)  # the kind of the job that works on a path
    convicted: Collection[str] = ()  # paths whose file, or set on hot, waits for quarantine
    urgent: frozenset[str] = frozenset()  # paths whose set a run waits for
    to_prove: Collection[str] = ()  # published paths with a request to prove their set
    wanted: frozenset[str] = frozenset()  # paths that the tokenizer is to be trained on
    shelved: frozenset[str] = frozenset()  # paths that the loop no longer works on
    beyond: frozenset[str] = frozenset()  # paths that the configured slice of the source leaves out
    # The only paths whose receipt and record may disagree; None: check all.
    differing: Collection[str] | None = None
    uncertain: bool = False  # the contents of warm are not known now
    not_before: Mapping[str, float] = field(default_factory=dict)
    paused_until: Mapping[str, float] = field(default_factory=dict)
    outgrown: Collection[str] = ()  # paths whose build was set back for lack of room: built last
    warm: WarmContents = field(default_factory=WarmContents)
    rooms: Mapping[str, Room] = field(default_factory=dict)  # for the kinds of jobs that take room on a disk

    def is_published(self, source: Source) -> bool:
        """Whether a set of the source's content is on hot, under any path."""
        return self.key_of is not None and self.key_of(source.sha256)[:16] in self.published

    def has_set(self, source: Source) -> bool:
        """Whether a set of the source's content exists, under any path: on record, on hot or on warm."""
        is_found = source.path in self.recallable or self.is_published(source)
        return is_found or self.sources.owner(source.sha256) is not None

    @cached_property
    def unrecorded(self) -> list[str]:
        """The open paths whose set is on hot: it was published, and not recorded before a crash."""
        return [] if self.key_of is None else self.sources.open_with(self.published, self.key_of)

    @cached_property
    def recallable(self) -> frozenset[str]:
        """The paths without a recorded set whose set is on warm and not on hot."""
        key_of, warm, sources = self.key_of, self.warm, self.sources
        if key_of is None or not warm.answers:
            return frozenset()
        there = (sources[path] for path in sources.open_with(warm.published, key_of))
        seen = [one for one in there if one.state == "seen" and not self.is_published(one)]
        return frozenset(one.path for one in seen if key_of(one.sha256) not in warm.rotten)

    def allows(self, kind: str, path: str, now: float) -> bool:
        """Whether a job of a kind may begin on the path: no job works on it, and it has no delay."""
        return (
            path not in self.busy
            and path not in self.shelved
            and now >= self.not_before.get(path, now)
            and now >= self.paused_until.get(kind, now)
            and (kind == "quarantine" or path not in self.convicted)
        )

    def slots(self, kind: str) -> int:
        """Returns how many more jobs of a kind may begin."""
        limits = self.limits
        most = {"stage": limits.stagers, "build": limits.builders}.get(kind, AT_ONCE)
        return max(0, most - sum(1 for each in self.busy.values() if each == kind))

    def starts(self, kind: str, paths: Iterable[str], now: float) -> Iterator[Action]:
        """Yields the jobs to begin on the first of these paths, within slots and room.

        No job overtakes another, because a big job would then wait for ever.
        """
        room = self.rooms.get(kind)
        left = 0 if room is None else room.left
        if left is None:
            return
        free = (path for path in paths if self.allows(kind, path, now))
        for number, path in enumerate(islice(free, self.slots(kind))):
            if room is not None:
                left -= room.needs(self.sources[path])
                if left < 0 and not (number == 0 and room.first_goes):
                    return
            yield Action(kind, path)

    def unclaimed(self, paths: Iterable[str]) -> Iterator[str]:
        """Yields the first of these paths of each content that no job works on, under any path."""
        claimed = {self.sources[path].sha256 for path in self.busy if path in self.sources}
        for path in paths:
            if (sha256 := self.sources[path].sha256) not in claimed:
                claimed.add(sha256)
                yield path
