"""Which shard sets are copied to warm, leave hot and come back next: pure decisions, beside the schedule's.

Which ones may leave and which ones are wanted back is `plan.residency`'s to say; here it is about what the
disks allow and what goes on already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from stoker.corpus.records.index import KEY16, Catalog
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.actions import KeepHot, Start
from stoker.corpus.schedule.state import Situation, in_hand, is_free, slots

SYNCS, EVICTIONS, HYDRATIONS, RECALLS = 2, 2, 2, 2


@dataclass(frozen=True)
class WarmContents:
    """What the decision depends on beside the schedule's situation.

    `published` are the keys' first 16 digits of what lies on warm, `hydrate` the paths to bring back now,
    `wanted` all paths that a run waits for. `sync_room` is in bytes, None where it is not known; `bytes_of`
    gives a set's size. `rotten` are the keys whose copy on warm turned out wrong.
    """

    published: Set[str] = frozenset()
    answers: bool = False
    writable: bool = False
    hydrate: Sequence[str] = ()
    wanted: frozenset[str] = frozenset()
    rotten: frozenset[str] = frozenset()
    sync_room: int | None = None
    bytes_of: Callable[[Source], int] = field(default=lambda source: source.size)


def decide_moves(situation: Situation, warm: WarmContents, now: float) -> tuple[Start | KeepHot, ...]:
    """The moves to begin now, within the limits; at most one for a path."""
    return (
        *_evictions(situation, warm, now),
        *_hydrations(situation, warm, now),
        *_syncs(situation, warm, now),
        *_recalls(situation, warm, now),
    )


def unsynced(sources: Catalog) -> Iterator[Source]:
    """The published sources whose set has no proven copy on warm yet."""
    return (sources[path] for path in sources.unsynced)


def recallable(situation: Situation, warm: WarmContents) -> frozenset[str]:
    """The paths without a set on record whose set lies on warm."""
    if situation.key_of is None or not warm.answers:
        return frozenset()
    catalog, key_of = situation.sources, situation.key_of
    return frozenset(
        path
        for path in catalog.open_with(warm.published, key_of)
        if catalog[path].state == "seen"
        and not situation.is_published(catalog[path])
        and key_of(catalog[path].sha256) not in warm.rotten
    )


def _evictions(situation: Situation, warm: WarmContents, now: float) -> Iterator[Start | KeepHot]:
    """Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted."""
    room = slots(situation, "evict", EVICTIONS)
    catalog = situation.sources
    left = (path for path in catalog.left_behind(situation.published) if path not in warm.wanted)
    for path in dict.fromkeys((*catalog.evicting, *left)):
        source = catalog[path]
        if not _movable(situation, path, now):
            continue
        if not warm.answers:
            if source.evicting and str(source.key)[:KEY16] in situation.published:
                yield KeepHot(path)
        elif room > 0:
            room -= 1
            yield Start("evict", path)


def _hydrations(situation: Situation, warm: WarmContents, now: float) -> Iterator[Start]:
    room = slots(situation, "hydrate", HYDRATIONS)
    if not warm.answers or now < situation.paused_until.get("hydrate", now):
        return
    for path in warm.hydrate:
        if room > 0 and _movable(situation, path, now):
            room -= 1
            yield Start("hydrate", path)


def _syncs(situation: Situation, warm: WarmContents, now: float) -> Iterator[Start]:
    usable = warm.answers and warm.writable
    if not usable or now < situation.paused_until.get("sync", now):
        return
    room, slot = warm.sync_room, slots(situation, "sync", SYNCS)
    for source in unsynced(situation.sources):
        if slot == 0 or room is None:
            return
        if _movable(situation, source.path, now):
            room -= warm.bytes_of(source)
            if room < 0:
                return
            slot -= 1
            yield Start("sync", source.path)


def _movable(situation: Situation, path: str, now: float) -> bool:
    return is_free(situation, path, now) and path not in situation.invalid_sets


def _recalls(situation: Situation, warm: WarmContents, now: float) -> Iterator[Start]:
    room = slots(situation, "recall", RECALLS)
    claimed = in_hand(situation)
    for path in sorted(recallable(situation, warm)) if room else ():
        sha256 = situation.sources[path].sha256
        if room > 0 and sha256 not in claimed and is_free(situation, path, now):
            claimed.add(sha256)
            room -= 1
            yield Start("recall", path)
