"""Which shard sets are copied to warm, leave hot and come back next: pure decisions, beside the schedule's.

Which ones may leave and which ones are wanted back is `plan.residency`'s to say; here it is about what the
disks allow and what goes on already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.corpus.schedule import Situation, is_free, slots
from stoker.corpus.sources import PUBLISHED, Source

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

    warm: frozenset[str] = frozenset()
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


def unsynced(sources: Mapping[str, Source]) -> list[Source]:
    """The published sources whose set has no proven copy on warm yet."""
    return [source for source in sources.values() if source.hot and not source.on_warm]


def recallable(situation: Situation, shelves: Shelves) -> frozenset[str]:
    """The paths without a set on record whose set lies on warm."""
    key_of = situation.key_of
    if key_of is None or not shelves.warm_answers:
        return frozenset()
    owned = {source.sha256 for source in situation.sources.values() if source.state in PUBLISHED}
    return frozenset(
        path
        for path, source in situation.sources.items()
        if source.state == "seen" and source.sha256 not in owned
        for key in (key_of(source.sha256),)
        if key[:16] in shelves.warm and key[:16] not in situation.published and key not in shelves.rotten
    )


def _evictions(situation: Situation, shelves: Shelves, now: float) -> Iterator[Evict | KeepHot]:
    """Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted."""
    room = slots(situation, "evict", EVICTIONS)
    for path, source in situation.sources.items():
        here = str(source.key)[:16] in situation.published
        left = source.evicted and here and path not in shelves.wanted
        if not (source.evicting or left) or not _movable(situation, path, now):
            continue
        if not shelves.warm_answers:
            if source.evicting and here:
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
    claimed: set[str] = set()
    for path in sorted(recallable(situation, shelves)):
        sha256 = situation.sources[path].sha256
        if room > 0 and sha256 not in claimed and is_free(situation, path, now):
            claimed.add(sha256)
            room -= 1
            yield Recall(path)
