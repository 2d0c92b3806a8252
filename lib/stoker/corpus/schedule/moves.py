"""Which shard sets are copied to warm, leave hot and come back next: pure decisions, beside the schedule's.

Which ones may leave and which ones are wanted back is `plan.residency`'s to say; here it is about what the
disks allow and what goes on already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from stoker.corpus.records.index import KEY16, Catalog
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.state import Situation, in_hand, is_free, slots

SYNCS, EVICTIONS, HYDRATIONS, RECALLS = 2, 2, 2, 2


@dataclass(frozen=True)
class Sync:
    """Copy the path's set to warm and prove the copy."""

    path: str


@dataclass(frozen=True)
class Evict:
    """Prove the path's copy on warm and take its set off hot."""

    path: str


@dataclass(frozen=True)
class KeepHot:
    """Take the intent to evict back: the set is on hot still, and warm cannot be read now."""

    path: str


@dataclass(frozen=True)
class Hydrate:
    """Bring the path's set back from warm."""

    path: str


@dataclass(frozen=True)
class Recall:
    """Prove the set on warm that has the path's key: its record was lost, not the set."""

    path: str


Move = Sync | Evict | KeepHot | Hydrate | Recall


@dataclass(frozen=True)
class Shelves:
    """What the decision depends on beside the schedule's situation.

    `warm` and `published` are the keys' first 16 digits of what lies on warm and on hot. `warm_answers` and
    `warm_writable` tell how warm is; `hydrate` are the paths to bring back now, `wanted` all that somebody
    waits for. `sync_room` is in bytes, None where it is not known; `bytes_of` a set's size. `rotten` are the
    keys whose copy on warm turned out wrong.
    """

    warm: Set[str] = frozenset()
    warm_answers: bool = False
    warm_writable: bool = False
    hydrate: Sequence[str] = ()
    wanted: frozenset[str] = frozenset()
    rotten: frozenset[str] = frozenset()
    sync_room: int | None = None
    bytes_of: Callable[[Source], int] = field(default=lambda source: source.size)


def decide_moves(situation: Situation, shelves: Shelves, now: float) -> tuple[Move, ...]:
    """The moves to begin now, within the limits; at most one for a path."""
    return (
        *_evictions(situation, shelves, now),
        *_hydrations(situation, shelves, now),
        *_syncs(situation, shelves, now),
        *_recalls(situation, shelves, now),
    )


def unsynced(sources: Mapping[str, Source]) -> Iterator[Source]:
    """The published sources whose set has no proven copy on warm yet."""
    catalog = Catalog.of(sources)
    return (catalog[path] for path in catalog.unsynced)


def recallable(situation: Situation, shelves: Shelves) -> frozenset[str]:
    """The paths without a set on record whose set lies on warm."""
    if situation.key_of is None or not shelves.warm_answers:
        return frozenset()
    catalog, key_of = situation.catalog, situation.key_of
    keys = (key for key in catalog.unowned(shelves.warm) if key not in situation.published)
    return frozenset(
        path
        for path in catalog.open_with(keys, key_of)
        if catalog[path].state == "seen" and key_of(catalog[path].sha256) not in shelves.rotten
    )


def _evictions(situation: Situation, shelves: Shelves, now: float) -> Iterator[Evict | KeepHot]:
    """Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted."""
    room = slots(situation, "evict", EVICTIONS)
    catalog = situation.catalog
    left = (path for path in catalog.left_behind(situation.published) if path not in shelves.wanted)
    for path in dict.fromkeys((*catalog.evicting, *left)):
        source = catalog[path]
        if not _movable(situation, path, now):
            continue
        if not shelves.warm_answers:
            if source.evicting and str(source.key)[:KEY16] in situation.published:
                yield KeepHot(path)
        elif room > 0:
            room -= 1
            yield Evict(path)


def _hydrations(situation: Situation, shelves: Shelves, now: float) -> Iterator[Hydrate]:
    room = slots(situation, "hydrate", HYDRATIONS)
    if not shelves.warm_answers or now < situation.paused_until.get("hydrate", now):
        return
    for path in shelves.hydrate:
        if room > 0 and _movable(situation, path, now):
            room -= 1
            yield Hydrate(path)


def _syncs(situation: Situation, shelves: Shelves, now: float) -> Iterator[Sync]:
    usable = shelves.warm_answers and shelves.warm_writable
    if not usable or now < situation.paused_until.get("sync", now):
        return
    room, slot = shelves.sync_room, slots(situation, "sync", SYNCS)
    for source in unsynced(situation.sources):
        if slot == 0 or room is None:
            return
        if _movable(situation, source.path, now):
            room -= shelves.bytes_of(source)
            if room < 0:
                return
            slot -= 1
            yield Sync(source.path)


def _movable(situation: Situation, path: str, now: float) -> bool:
    return is_free(situation, path, now) and path not in situation.invalid_sets


def _recalls(situation: Situation, shelves: Shelves, now: float) -> Iterator[Recall]:
    room = slots(situation, "recall", RECALLS)
    claimed = in_hand(situation)
    for path in sorted(recallable(situation, shelves)) if room else ():
        sha256 = situation.sources[path].sha256
        if room > 0 and sha256 not in claimed and is_free(situation, path, now):
            claimed.add(sha256)
            room -= 1
            yield Recall(path)
