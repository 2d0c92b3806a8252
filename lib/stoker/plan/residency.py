"""Decides which shard sets are on the hot disk: which may leave, in which order, and which come back when.

Pure decisions over the runs' holdings (`plan.consumption`) and the existing sets. Bytes are those of whole
set directories. A run holds the sets of planned entries beyond its low-water mark, which never leave, and its
wants, of which a less urgent one leaves for a more urgent one that is not on hot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from stoker.plan.consumption import Holdings
from stoker.plan.growth import AHEAD_BATCHES
from stoker.plan.log import Plan, Segment
from stoker.plan.positions import START, Position, Skip, at, left_after, linear
from stoker.store.errors import DataError


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A published shard set."""

    key: str
    bytes: int
    train_tokens: int
    hot: bool  # is on hot, and is not leaving
    warm: bool  # has a proven copy on warm


def reaching(plan: Plan, position: Position) -> Iterator[Segment]:
    """Returns the planned segments with windows beyond a position; raises DataError for a wrong position.

    Leaves out segments too small for a window, which no trainer reads.
    """
    begun = linear(plan, position)
    return (
        entry
        for entry in plan.entries[position.entry :]
        if isinstance(entry, Segment) and entry.windows and plan.starts[entry.n + 1] > begun
    )


def reach_from(
    plan: Plan,
    position: Position,
    is_hot: Callable[[Segment], bool],
    *,
    least_windows: int,
    skips: Sequence[Skip] = (),
) -> Position | None:
    """Returns how far a run may train while hot cannot hold all planned sets; None: to the plan's end.

    The run may train through the segments that give `least_windows`, and further while all are on hot.
    """
    left, all_hot = left_after(plan, position, skips), True
    for segment in reaching(plan, position):
        begins = Position(segment.n, 0)
        before = left - left_after(plan, begins if segment.n > position.entry else position, skips)
        hot = is_hot(segment)
        if before >= least_windows and not (all_hot and hot):
            return begins
        all_hot = all_hot and hot
    return None


def planned(holdings: Iterable[Holdings]) -> frozenset[str]:
    """Returns the keys of the sets that unfinished runs have planned between low-water mark and reach.

    Returns all sets of a plan that has lost the entries around its mark, until the next start restores them.
    """
    return frozenset(
        key
        for run in holdings
        if not run.finished
        for segment in _planned(run)
        if run.reach is None or segment.n < run.reach.entry
        for key, _ in segment.sets
    )


def held(holdings: Iterable[Holdings]) -> frozenset[str]:
    """Returns the keys that runs hold on hot, planned or wanted; a finished run holds none."""
    runs = list(holdings)
    return planned(runs) | frozenset(key for run in runs if not run.finished for key in run.wants)


def urgency(holdings: Iterable[Holdings]) -> list[str]:
    """Returns all wanted keys, most urgent first: each run's first want, each run's second, ..."""
    turns = zip_longest(*(run.wants for run in holdings if not run.finished))
    return list(dict.fromkeys(key for turn in turns for key in turn if key is not None))


def next_use(holdings: Iterable[Holdings], listing_keys: Sequence[str]) -> dict[str, int]:
    """Returns the rank of each set's next use: 0 is the soonest; the least rank of all unfinished runs.

    A run uses its wants, its planned entries beyond the mark, the rest of its epoch in listing order, and
    then the next epoch; a plan that has ended adds no use. A set without a rank is never used again.
    """
    ranks: dict[str, int] = {}
    for run in holdings:
        if not run.finished:
            for rank, key in enumerate(dict.fromkeys(_uses(run, listing_keys))):
                ranks[key] = min(rank, ranks.get(key, rank))
    return ranks


def to_evict(
    sets: Iterable[ShardSet],
    holdings: Iterable[Holdings],
    rank: Mapping[str, int],
    *,
    free_bytes: int,
    wanted_free_bytes: int,
    keep_sets: int,
    reserve_bytes: int = 0,
    busy: Collection[str] = (),
) -> tuple[list[str], str]:
    """Returns the keys to evict, in order, for `wanted_free_bytes` of free room; and why not enough, or "".

    Evicts sets without further use first, then by furthest next use; `keep_sets` always stay. A wanted set
    leaves, least urgent first, only while more urgent cold sets that are not `busy` (being brought back) lack
    room: while fewer bytes are free than theirs and `reserve_bytes` (stage.free_floor).

    `sets` are all published sets, `rank` comes from `next_use`; `free_bytes` are the free bytes less claims,
    with the bytes of sets that are already leaving.
    """
    known, runs = {one.key: one for one in sets}, list(holdings)
    kept, wants = planned(runs), _wants(known, urgency(runs), busy)
    movable = [one for one in known.values() if one.hot and one.warm and one.key not in kept]
    hot = [one for one in known.values() if one.hot]
    spare_sets = len(hot) - keep_sets
    leaving: list[str] = []

    def offer(one: ShardSet) -> None:
        """Evicts a set, unless it is one of the last that stay."""
        nonlocal spare_sets, free_bytes
        if spare_sets >= 1:
            spare_sets -= 1
            free_bytes += one.bytes
            leaving.append(one.key)

    loose = [one for one in movable if one.key not in wants]
    for one in sorted(loose, key=lambda one: (-rank.get(one.key, math.inf), -one.bytes, one.key)):
        if free_bytes < wanted_free_bytes:
            offer(one)
    wanted = {one.key: one for one in movable if one.key in wants}
    for key, lacking in reversed(wants.items()):
        if key in wanted and lacking and free_bytes < min(wanted_free_bytes, reserve_bytes + lacking):
            offer(wanted[key])
    short = wanted_free_bytes - free_bytes
    if short <= 0:
        return leaving, ""
    stay = [one for one in hot if one.key not in leaving]
    why = Counter(_why_it_stays(one, kept, wants) for one in stay)
    reasons = ", ".join(f"{count} {words}" for words, count in why.most_common()) or "none is there"
    return leaving, f"{short} bytes short; of {len(stay)} shard sets on hot {reasons}"


def to_hydrate(
    sets: Iterable[ShardSet],
    holdings: Iterable[Holdings],
    *,
    room_bytes: int,
    at_once: int,
    busy: Collection[str],
) -> tuple[list[str], int]:
    """Returns the keys to bring back now, most urgent first; and the bytes of the other wanted cold sets.

    `room_bytes` excludes the claims of the `busy` sets, which are already coming back; at most `at_once` come
    back at a time. Strictly in order: no set overtakes one that does not fit, which would starve. A set
    without a proven warm copy cannot come back and is left out.
    """
    known = {one.key: one for one in sets}
    found = (known[key] for key in urgency(holdings) if key in known and key not in busy)
    cold = [one for one in found if one.warm and not one.hot]
    begun: list[str] = []
    for one in cold[: max(0, at_once - len(busy))]:
        if one.bytes > room_bytes:
            break
        room_bytes -= one.bytes
        begun.append(one.key)
    return begun, sum(one.bytes for one in cold[len(begun) :])


def low_water(plan: Plan, positions: Iterable[Position]) -> Position:
    """Returns the least of the positions, START for none; raises DataError for one beyond the plan."""
    return min(positions, key=lambda position: linear(plan, position), default=START)


def ahead_windows(*, global_batch: int, windows_per_s: float | None, lead_s: float) -> int:
    """Returns how many windows the plan must reach beyond the trainer, at least 32 global batches.

    The trainer must not reach the plan's end within `lead_s`, the time to bring back the next entry's sets.
    """
    return max(AHEAD_BATCHES * global_batch, math.ceil((windows_per_s or 0.0) * lead_s))


def due_s(
    plan: Plan, position: Position, entry: int, windows_per_s: float | None, skips: Sequence[Skip] = ()
) -> float | None:
    """Returns the seconds until a trainer at `position` reaches an entry; 0.0: it has reached it already.

    `entry` may be the number of entries, for the entry that is planned next. None while the rate is unknown.
    """
    if not windows_per_s:
        return None
    first = at(plan, plan.starts[min(entry, len(plan.entries))])
    ahead = left_after(plan, position, skips) - left_after(plan, first, skips)
    return max(0, ahead) / windows_per_s


def _wants(known: Mapping[str, ShardSet], keys: Iterable[str], busy: Collection[str]) -> dict[str, int]:
    """Returns wanted sets, most urgent first, each with the bytes of more urgent cold sets not yet busy."""
    wants: dict[str, int] = {}
    lacking = 0
    for key in keys:
        wants[key] = lacking
        one = known.get(key)
        if one is not None and one.warm and not one.hot and key not in busy:
            lacking += one.bytes
    return wants


def _why_it_stays(one: ShardSet, kept: Collection[str], wants: Collection[str]) -> str:
    if one.key in kept:
        return "planned to be read"
    if not one.warm:
        return "without a proven warm copy"
    return "wanted next" if one.key in wants else "kept by evict.keep_hot_sets"


def _planned(run: Holdings) -> Iterator[Segment]:
    try:
        return reaching(run.plan, run.low_water)
    except DataError:
        return iter(run.plan.segments)


def _uses(run: Holdings, listing_keys: Sequence[str]) -> Iterator[str]:
    yield from run.wants
    yield from (key for segment in _planned(run) for key, _ in segment.sets)
    if run.plan.ended:
        return
    segments = run.plan.segments
    epoch = segments[-1].epoch if segments else 0
    named = {key for segment in segments if segment.epoch == epoch for key, _ in segment.sets}
    if segments and segments[-1].dataset:  # the next part begins in the set that the last one ended in
        named.discard(segments[-1].sets[-1][0])
    yield from (key for key in listing_keys if key not in named)
    yield from listing_keys
