"""Decides which shard sets are on hot, from the runs' plans and the sets there; writes eviction intents.

The rules are plan.residency's. This module moves no set: it writes an intent to evict under the lock that
the supervisors hold, shared, while they name sets in a plan; the moves follow.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from stoker.corpus.records.sources import PUBLISHED, tokens_of
from stoker.plan.residency import ShardSet, next_use, to_evict, to_hydrate, urgency
from stoker.store.errors import storage_errors
from stoker.store.files import opened
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Effect, Write
from stokerd.sharding.runs import HydrationDemand

HYDRATIONS = 2
EVICT_AT_ONCE = 8  # intents per hold of the lock, which supervisors wait for
NOTHING_LEFT_S, LOCKED_S = 2.0, 0.1  # delay of the next try


def is_tried(dataset: DatasetState) -> bool:
    """Whether eviction was tried since a record last changed."""
    return dataset.placement.tried == dataset.sources.changes


def choose(dataset: DatasetState) -> HydrationDemand:
    """Returns which sets to bring back."""
    holdings, sources, space = dataset.machine.runs.holdings, dataset.sources, dataset.machine.space
    if not any(run.wants for run in holdings):
        return HydrationDemand()
    free, busy = space.free(dataset.hot, space.floor), _coming(dataset)
    sets, paths = _published(dataset)
    keys, waiting = to_hydrate(sets, holdings, room_bytes=free or 0, at_once=HYDRATIONS, busy=busy)
    wanted = [key for key in urgency(holdings) if key in paths]
    return HydrationDemand(
        hydrate=tuple(paths[key] for key in keys),
        wanted=frozenset(paths[key] for key in wanted),
        cold_bytes=waiting,
        cold=sum(sources[paths[key]].evicted and key not in busy for key in wanted),
        is_blocked=waiting > 0 and free is not None and len(keys) + len(busy) < HYDRATIONS,
    )


def evict_for(dataset: DatasetState, needed_bytes: int) -> Iterator[Effect]:
    """Writes eviction intents until the needed bytes find space."""
    runs, space, warm = dataset.machine.runs, dataset.machine.space, dataset.warm
    now, free, placement = time.monotonic(), space.free(dataset.hot), dataset.placement
    waits = is_tried(dataset) and now < runs.due
    if warm is None or not warm.is_known or runs.is_damaged or free is None or waits:
        return
    leaving = [dataset.sources[path] for path in dataset.sources.evicting]
    free += sum(dataset.needs.estimate.published(one) for one in leaving if not one.evicted)
    wanted = space.wanted_free(dataset.hot, needed_bytes)
    placement.tried, runs.due = dataset.sources.changes, now
    if free >= wanted:
        placement.why = ""
        return
    if not _to_evict(dataset, free, wanted):
        runs.due = now + NOTHING_LEFT_S
        return
    # Supervisors hold this lock, shared, while they name sets in a plan; they go first.
    held = runs.layout.shard_sets_lock
    with storage_errors("lock", held), opened(held, os.O_RDWR | os.O_CREAT) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            runs.due = now + LOCKED_S
            return
        yield from runs.refresh()
        for path in [] if runs.is_damaged else _to_evict(dataset, free, wanted)[:EVICT_AT_ONCE]:
            yield Write(replace(dataset.sources[path], evicting=True))


def _to_evict(dataset: DatasetState, free: int, wanted: int) -> list[str]:
    sources, pin, holdings = dataset.sources, dataset.pinning.pin, dataset.machine.runs.holdings
    sets, paths = _published(dataset)
    listed = [sources[path] for path in (pin.listing if pin else ()) if path in sources]
    keys, dataset.placement.why = to_evict(
        sets,
        holdings,
        next_use(holdings, [str(source.key) for source in listed if source.key in paths]),
        free_bytes=free,
        wanted_free_bytes=wanted,
        keep_sets=dataset.pipeline.evict.keep_hot_sets,
        reserve_bytes=dataset.machine.space.floor,
        busy=_coming(dataset),
    )
    return [paths[key] for key in keys]


def _published(dataset: DatasetState) -> tuple[list[ShardSet], dict[str, str]]:
    """Returns all published sets, and each set's path by key; cached while its inputs are unchanged."""
    retries, estimate, placement = dataset.retries, dataset.needs.estimate, dataset.placement
    waits = frozenset(path for path in retries.not_before if not retries.allows(path))
    asked = (dataset.sources.changes, estimate, waits)
    if placement.sets is None or placement.sets[0] != asked:
        paths: dict[str, str] = {}
        sets = []
        for source in dataset.sources.values():
            if source.state in PUBLISHED and source.key is not None and source.key not in paths:
                paths[source.key] = source.path
                # A set whose last move failed stays where it is until its retry time.
                is_movable = source.on_warm and source.path not in waits
                size, tokens = estimate.published(source), tokens_of(source.books, "train")
                sets.append(ShardSet(source.key, size, tokens, hot=source.hot, warm=is_movable))
        placement.sets = asked, sets, paths
    return placement.sets[1:]


def _coming(dataset: DatasetState) -> set[str]:
    """Returns the keys of the sets that are being brought back."""
    return {str(dataset.sources[path].key) for path in dataset.doing("hydrate")}
