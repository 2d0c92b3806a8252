"""What the stage-shard loop's decisions are made from: everything known, and how much may go on at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source

AT_ONCE = 2  # jobs of each of the other kinds


@dataclass(frozen=True)
class Limits:
    """How much may go on at once; `queue_*` bound what is staged ahead of the builders, beside what they have
    in hand."""

    stagers: int
    builders: int
    queue_files: int
    queue_bytes: int
    release: Literal["never", "after_proof", "after_sync"]


@dataclass(frozen=True)
class Action:
    """One step: a job of this kind on the path, or a change of its records alone, which is one of these:

    restart: the path begins anew, with the content that its receipt names.
    replace: its file has other content since its set was proven; the set stays, under the path's former name.
    give_up: its file could not be fetched; the others go on without it, until it comes after all.
    give_up_content: the set of a former or imported content is gone, and no file has the content.
    duplicate: its content is that of `of`, which has a shard set.
    keep_hot: the intent to evict is taken back; the set is on hot still, and warm cannot be read now.
    """

    kind: str
    path: str
    of: str = ""


@dataclass(frozen=True)
class Room:
    """Bytes of a disk that jobs of one kind may take, and how many bytes a job on a source `needs`.

    `left` is None while the disk's room is not known. `first_goes`: the first may begin whatever it needs.
    """

    left: int | None
    needs: Callable[[Source], int]
    first_goes: bool = False


@dataclass(frozen=True)
class WarmContents:
    """What the moves depend on.

    `published` are the keys' first 16 digits of what lies on warm, `hydrate` the paths to bring back now,
    `wanted` all paths that a run waits for. `rotten` are the keys whose copy on warm turned out wrong.
    """

    published: Set[str] = frozenset()
    answers: bool = False
    writable: bool = False
    hydrate: Sequence[str] = ()
    wanted: frozenset[str] = frozenset()
    rotten: Collection[str] = frozenset()


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on; times are monotonic seconds.

    `key_of` gives the shard set's key of a content, None before the dataset is pinned. `published` holds
    the keys' first 16 digits of the sets that lie on hot. `busy` tells which kind of job a path is in.
    `convicted` are the paths whose file, or set on hot, waits for quarantine. `to_prove` are published ones
    that somebody asked to prove, `urgent` those whose set a run waits for, `wanted` those the tokenizer is to
    be trained on, `shelved` those left alone from now on, `beyond` those that the configured slice of the
    source leaves out. `differing` are the only paths whose receipt and record may disagree; None means check
    all. `uncertain`: what lies on warm is not known now. `outgrown` are those whose build was set back for
    want of room, and goes after all others. `rooms` bound the kinds of jobs that take room on a disk.
    """

    receipts: Mapping[str, Receipt]
    sources: Catalog
    limits: Limits
    key_of: Callable[[str], str] | None = None
    published: Set[str] = frozenset()
    busy: Mapping[str, str] = field(default_factory=dict)
    convicted: Collection[str] = ()
    urgent: frozenset[str] = frozenset()
    to_prove: Collection[str] = ()
    wanted: frozenset[str] = frozenset()
    shelved: frozenset[str] = frozenset()
    beyond: Container[str] = frozenset()
    differing: Collection[str] | None = None
    uncertain: bool = False
    not_before: Mapping[str, float] = field(default_factory=dict)
    paused_until: Mapping[str, float] = field(default_factory=dict)
    outgrown: Collection[str] = ()
    warm: WarmContents = field(default_factory=WarmContents)
    rooms: Mapping[str, Room] = field(default_factory=dict)

    def is_published(self, source: Source) -> bool:
        """Whether a set of the source's content lies on hot, whoever's it is."""
        return self.key_of is not None and self.key_of(source.sha256)[:16] in self.published

    @cached_property
    def recallable(self) -> frozenset[str]:
        """The paths without a set on record whose set lies on warm, and not on hot."""
        key_of, warm, sources = self.key_of, self.warm, self.sources
        if key_of is None or not warm.answers:
            return frozenset()
        there = (sources[path] for path in sources.open_with(warm.published, key_of))
        seen = [one for one in there if one.state == "seen" and not self.is_published(one)]
        return frozenset(one.path for one in seen if key_of(one.sha256) not in warm.rotten)

    def allows(self, kind: str, path: str, now: float) -> bool:
        """Whether a job of a kind may begin on the path: nothing is done with it, it waits for nothing."""
        return (
            path not in self.busy
            and path not in self.shelved
            and now >= self.not_before.get(path, now)
            and now >= self.paused_until.get(kind, now)
            and (kind == "quarantine" or path not in self.convicted)
        )

    def slots(self, kind: str) -> int:
        """How many more jobs of a kind may begin."""
        limits = self.limits
        most = {"stage": limits.stagers, "build": limits.builders}.get(kind, AT_ONCE)
        return max(0, most - sum(1 for each in self.busy.values() if each == kind))

    def starts(self, kind: str, paths: Iterable[str], now: float) -> Iterator[Action]:
        """The jobs to begin on the first of these, as far as slots and room go.

        None overtakes another, or a big one would wait for ever.
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
        """The first of these paths of each content that nothing is being done with, under whichever path."""
        claimed = {self.sources[path].sha256 for path in self.busy if path in self.sources}
        for path in paths:
            if (sha256 := self.sources[path].sha256) not in claimed:
                claimed.add(sha256)
                yield path
