"""Decides which shard sets are on hot, from the runs' plans and the sets there; writes eviction intents.

The rules are plan.residency's. This module moves no set: it writes an intent to evict under the lock that
the supervisors hold, shared, while they name sets in a plan; the moves follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.corpus.records.sources import PUBLISHED, tokens_of
from stoker.kit.daemon import DaemonContext
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.residency import ShardSet, next_use, to_evict, to_hydrate, urgency
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stokerd.sharding.effects import Alert, AlertOver, Effect, Write

if TYPE_CHECKING:
    from stokerd.sharding.state import State

HYDRATIONS = 2
EVICT_AT_ONCE = 8  # intents per hold of the lock, which supervisors wait for
NOTHING_LEFT_S, LOCKED_S = 2.0, 0.1  # delay of the next try


@dataclass(frozen=True)
class Wants:
    """What the runs want: paths to bring back now, all wanted paths, the number of them not on hot, and the
    bytes of those that wait; `is_blocked`: they wait for space, not for their turn."""

    hydrate: tuple[str, ...] = ()
    wanted: frozenset[str] = frozenset()
    cold_bytes: int = 0
    cold: int = 0
    is_blocked: bool = False


class Placement:
    """What the runs hold, as last read; `why` is the reason why no more sets can leave hot."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self._layout = context, context.layout
        self.holdings: list[Holdings] = []
        self.wants = Wants()
        self.why = ""
        self._is_damaged = False
        self._seen: object = None
        self._tried = -1  # the records' change count at the last try to evict
        self._sets: tuple[object, list[ShardSet], dict[str, str]] | None = None
        self.due = 0.0  # when to try again, monotonic seconds

    def look(self) -> Iterator[Effect]:
        """Reads what the runs hold if that changed. With a damaged plan all sets stay on hot."""
        seen = _fingerprint(self._layout.runs)
        if seen == self._seen:
            return
        self._seen, self.due = seen, 0.0
        self.watch()
        try:
            self.holdings = read_holdings(self._layout)
        except DataError as error:
            self._is_damaged = True
            reason = f"{error}; until then no shard set leaves hot"
            yield Alert("plan_unreadable", fields={"reason": reason})
        else:
            self._is_damaged = False
            yield AlertOver("plan_unreadable")

    def watch(self) -> None:
        """Subscribes to changes of the runs directory and of each run."""
        runs = self._layout.runs
        self._context.waiter.watch(runs)
        with contextlib.suppress(FileNotFoundError):
            for run in runs.iterdir():
                self._context.waiter.watch(run)

    @property
    def is_consumed(self) -> bool:
        """Whether an unfinished run has a plan: its progress will free space."""
        return any(run.plan.windows and not run.finished for run in self.holdings)

    def is_tried(self, state: State) -> bool:
        """Whether eviction was tried since a record last changed."""
        return self._tried == state.sources.changes

    # Bringing back

    def choose(self, state: State) -> None:
        """Decides which sets to bring back."""
        if not any(run.wants for run in self.holdings):
            self.wants = Wants()
            return
        sources, free, busy = state.sources, state.space.free(state.hot, state.space.floor), _coming(state)
        sets, paths = self._published(state)
        keys, waiting = to_hydrate(sets, self.holdings, room_bytes=free or 0, at_once=HYDRATIONS, busy=busy)
        wanted = [key for key in urgency(self.holdings) if key in paths]
        self.wants = Wants(
            hydrate=tuple(paths[key] for key in keys),
            wanted=frozenset(paths[key] for key in wanted),
            cold_bytes=waiting,
            cold=sum(sources[paths[key]].evicted and key not in busy for key in wanted),
            is_blocked=waiting > 0 and free is not None and len(keys) + len(busy) < HYDRATIONS,
        )

    # Leaving

    def make_room(self, state: State, needed_bytes: int) -> Iterator[Effect]:
        """Writes eviction intents until the needed bytes find space."""
        now, free, changes = time.monotonic(), state.space.free(state.hot), state.sources.changes
        waits = self.is_tried(state) and now < self.due
        if state.warm is None or not state.warm.is_known or self._is_damaged or free is None or waits:
            return
        leaving = [state.sources[path] for path in state.sources.evicting]
        free += sum(state.space.estimate.published(one) for one in leaving if not one.evicted)
        wanted, self._tried, self.due = state.space.wanted_free(state, needed_bytes), changes, now
        if free >= wanted:
            self.why = ""
            return
        if not self._to_evict(state, free, wanted):
            self.due = now + NOTHING_LEFT_S
            return
        # Supervisors hold this lock, shared, while they name sets in a plan; they go first.
        held = self._layout.shard_sets_lock
        with storage_errors("lock", held), opened(held, os.O_RDWR | os.O_CREAT) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.due = now + LOCKED_S
                return
            yield from self.look()
            for path in [] if self._is_damaged else self._to_evict(state, free, wanted)[:EVICT_AT_ONCE]:
                yield Write(replace(state.sources[path], evicting=True))

    def _to_evict(self, state: State, free: int, wanted: int) -> list[str]:
        sources, pin = state.sources, state.records.pinning.pin
        sets, paths = self._published(state)
        listed = [sources[path] for path in (pin.listing if pin else ()) if path in sources]
        keys, self.why = to_evict(
            sets,
            self.holdings,
            next_use(self.holdings, [str(source.key) for source in listed if source.key in paths]),
            free_bytes=free,
            wanted_free_bytes=wanted,
            keep_sets=state.pipeline.evict.keep_hot_sets,
            reserve_bytes=state.space.floor,
            busy=_coming(state),
        )
        return [paths[key] for key in keys]

    def _published(self, state: State) -> tuple[list[ShardSet], dict[str, str]]:
        """Returns all published sets, and each set's path by key; cached while its inputs are unchanged."""
        waits = frozenset(path for path in state.retries.not_before if not state.retries.allows(path))
        asked = (state.sources.changes, state.space.estimate, waits)
        if self._sets is None or self._sets[0] != asked:
            paths: dict[str, str] = {}
            sets = []
            for source in state.sources.values():
                if source.state in PUBLISHED and source.key is not None and source.key not in paths:
                    paths[source.key] = source.path
                    # A set whose last move failed stays where it is until its retry time.
                    is_movable = source.on_warm and source.path not in waits
                    size, tokens = state.space.estimate.published(source), tokens_of(source.books, "train")
                    sets.append(ShardSet(source.key, size, tokens, hot=source.hot, warm=is_movable))
            self._sets = asked, sets, paths
        return self._sets[1], self._sets[2]


def _coming(state: State) -> set[str]:
    """Returns the keys of the sets that are being brought back."""
    return {str(state.sources[path].key) for path in state.doing("hydrate")}


def _fingerprint(runs: Path) -> object:
    """Returns a value that changes when a run comes or goes, or its plan or consumed.json is written."""
    found = []
    with storage_errors("read", runs), contextlib.suppress(FileNotFoundError):
        for run in sorted(runs.iterdir()):
            for name in ("plan.jsonl", "consumed.json"):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    about = (run / name).stat()
                    found.append((run.name, name, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)
