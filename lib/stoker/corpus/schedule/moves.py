"""Which shard sets are copied to warm, leave hot and come back next: pure decisions, part of the schedule's.

Which ones may leave and which ones are wanted back is `plan.residency`'s to say; here it is about what the
disks allow and what goes on already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from stoker.corpus.records.index import KEY16, Catalog
from stoker.corpus.schedule.state import Action, Situation, WarmContents


def decide_moves(situation: Situation, now: float) -> tuple[Action, ...]:
    """The moves to begin now, within the limits; at most one for a path."""
    warm, catalog = situation.warm, situation.sources
    if not warm.answers:
        return tuple(_kept_hot(situation, now))
    left = (path for path in catalog.left_behind(situation.published) if path not in warm.wanted)
    return (
        # Finish what was begun; and take off hot what a record says is on warm only, unless it is wanted.
        *situation.starts("evict", dict.fromkeys((*catalog.evicting, *left)), now),
        *situation.starts("hydrate", warm.hydrate, now),
        *situation.starts("sync", catalog.unsynced if warm.writable else (), now),
        *situation.starts("recall", situation.unclaimed(sorted(situation.recallable)), now),
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


def _kept_hot(situation: Situation, now: float) -> Iterator[Action]:
    for path in situation.sources.evicting:
        is_there = str(situation.sources[path].key)[:KEY16] in situation.published
        if is_there and situation.allows("evict", path, now):
            yield Action("keep_hot", path)
