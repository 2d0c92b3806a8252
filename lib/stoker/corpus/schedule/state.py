"""What the stage-shard loop's decisions are made from: everything known, and how much may go on at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import Source


@dataclass(frozen=True)
class Limits:
    """How much may go on at once; `queue_*` bound what is staged ahead of the builders, beside what they have
    in hand."""

    stagers: int
    builders: int
    provers: int
    queue_files: int
    queue_bytes: int
    release: Literal["never", "after_proof", "after_sync"]


@dataclass(frozen=True)
class Room:
    """Bytes that may be given out: for staging a file and building its set, for going on to build one.

    `stage_needs` and `build_needs` tell the bytes that it takes. None for a room that is not known yet.
    `one_build`: the first may begin whatever the estimate says, which nothing was measured for yet;
    `one_stage`: the same of staging, where that takes no room and nothing is staged.
    """

    stage: int | None
    build: int | None
    stage_needs: Callable[[Source], int]
    build_needs: Callable[[Source], int]
    one_build: bool = False
    one_stage: bool = False


@dataclass(frozen=True)
class WarmContents:
    """What the moves depend on.

    `published` are the keys' first 16 digits of what lies on warm, `hydrate` the paths to bring back now,
    `wanted` all paths that a run waits for. `sync_room` is in bytes, None where it is not known; `bytes_of`
    gives a set's size. `rotten` are the keys whose copy on warm turned out wrong.
    """

    published: Set[str] = frozenset()
    answers: bool = False
    writable: bool = False
    hydrate: Sequence[str] = ()
    wanted: frozenset[str] = frozenset()
    rotten: Collection[str] = frozenset()
    sync_room: int | None = None
    bytes_of: Callable[[Source], int] = field(default=lambda source: source.size)


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on; times are monotonic seconds.

    `key_of` gives the shard set's key of a content, None before the dataset is pinned. `published` holds
    the keys' first 16 digits of the sets that lie on hot. `busy` tells which kind of job a path is in.
    `convicted` are the paths whose file, or set on hot, waits for quarantine.
    `recallable` are those whose set lies on warm without a record, `to_prove` published ones that somebody
    asked to prove, `urgent` those whose set a run waits for, `wanted` those the tokenizer is to be trained
    on, `shelved` those left alone from now on, `beyond` those that the configured slice of the source leaves
    out. `differing` are the only paths whose receipt and record may disagree; None means check all.
    `uncertain`: what lies on warm is not known now. `outgrown` are those whose build was set back for want
    of room, and goes after all others. `room` tells what the disk has room for, None where that
    does not matter.
    """

    receipts: Mapping[str, Receipt]
    sources: Catalog
    limits: Limits
    key_of: Callable[[str], str] | None = None
    published: Set[str] = frozenset()
    busy: Mapping[str, str] = field(default_factory=dict)
    convicted: Collection[str] = ()
    recallable: Collection[str] = ()
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
    room: Room | None = None

    def is_published(self, source: Source) -> bool:
        """Whether a set of the source's content lies on hot, whoever's it is."""
        return self.key_of is not None and self.key_of(source.sha256)[:16] in self.published


def is_free(situation: Situation, path: str, now: float) -> bool:
    """Whether work on the path may begin: nothing goes on with it, and it does not wait after a failure."""
    return (
        path not in situation.busy
        and path not in situation.shelved
        and now >= situation.not_before.get(path, now)
    )


def slots(situation: Situation, kind: str, most: int) -> int:
    """How many more jobs of a kind may begin."""
    return max(0, most - sum(1 for each in situation.busy.values() if each == kind))


def in_hand(situation: Situation) -> set[str]:
    """The contents that something is being done with, under whichever path."""
    sources = situation.sources
    return {sources[path].sha256 for path in situation.busy if path in sources}
