"""Which shard sets are copied to warm, leave hot and come back next: pure decisions, part of the schedule's.

Which ones may leave and which ones are wanted back is `plan.residency`'s to say; here it is about what the
disks allow and what goes on already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice

from stoker.corpus.records.index import KEY16, Catalog
from stoker.corpus.schedule.actions import KeepHot, Start
from stoker.corpus.schedule.state import Situation, WarmContents, in_hand, is_free, slots

AT_ONCE = 2  # of each kind


def decide_moves(situation: Situation, now: float) -> tuple[Start | KeepHot, ...]:
    """The moves to begin now, within the limits; at most one for a path."""
    warm = situation.warm
    if not warm.answers:
        return tuple(_kept_hot(situation, now))
    catalog = situation.sources
    left = (path for path in catalog.left_behind(situation.published) if path not in warm.wanted)
    return (
        # Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted.
        *_starts(situation, "evict", dict.fromkeys((*catalog.evicting, *left)), now),
        *_starts(situation, "hydrate", warm.hydrate, now),
        *_starts(situation, "sync", _copies(situation, now) if warm.writable else (), now),
        *_starts(situation, "recall", _recalls(situation), now),
    )


def recallable(
    sources: Catalog, key_of: Callable[[str], str] | None, on_hot: Set[str], warm: WarmContents
) -> frozenset[str]:
    """The paths without a set on record whose set lies on warm, and not on hot."""
    if key_of is None or not warm.answers:
        return frozenset()
    found = {path: key_of(sources[path].sha256) for path in sources.open_with(warm.published, key_of)}
    return frozenset(
        path
        for path, key in found.items()
        if sources[path].state == "seen" and key[:KEY16] not in on_hot and key not in warm.rotten
    )


def _starts(situation: Situation, kind: str, paths: Iterable[str], now: float) -> Iterator[Start]:
    if now >= situation.paused_until.get(kind, now):
        free = (path for path in paths if _movable(situation, path, now))
        for path in islice(free, slots(situation, kind, AT_ONCE)):
            yield Start(kind, path)


def _movable(situation: Situation, path: str, now: float) -> bool:
    return is_free(situation, path, now) and path not in situation.convicted


def _kept_hot(situation: Situation, now: float) -> Iterator[KeepHot]:
    for path in situation.sources.evicting:
        is_there = str(situation.sources[path].key)[:KEY16] in situation.published
        if is_there and _movable(situation, path, now):
            yield KeepHot(path)


def _copies(situation: Situation, now: float) -> Iterator[str]:
    """The sets without a proven copy on warm that there is room for; none overtakes another."""
    room = situation.warm.sync_room
    for path in situation.sources.unsynced if room is not None else ():
        if _movable(situation, path, now):
            room = (room or 0) - situation.warm.bytes_of(situation.sources[path])
            if room < 0:
                return
            yield path


def _recalls(situation: Situation) -> Iterator[str]:
    """One path of each content whose set is to be proven on warm."""
    claimed = in_hand(situation)
    for path in sorted(situation.recallable):
        if (sha256 := situation.sources[path].sha256) not in claimed:
            claimed.add(sha256)
            yield path
