"""Why kinds of work wait: a full disk, memory, the source folder; recorded once, and over by itself."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from stoker.corpus.staging.disk_full import LOOK_S, Full, Place
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.retries import Retries
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.errors import StorageError, UnavailableError
from stokerd.sharding.facts.memory import Memory

if TYPE_CHECKING:
    from stokerd.sharding.state import State

WRITERS = ("stage", "build", "hydrate", "sync")
SOURCE = "/source"  # under which failures of the source folder are counted
SOURCE_RETRY_S = 30.0  # at the latest: each try costs one file's staging
TRIES_ONCE = 5
ONCE_WAITS_S = 20.0  # with --once, for room


class Pauses:
    """What waits for room, memory or the source; with --once nothing waits for long."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self._events = context, context.events
        self.memory = Memory(context)
        self.retries = Retries()
        self._full: dict[Place, Full] = {}
        self._measure_at = 0.0
        self.source_why = ""

    # Full disks

    def disk_full(self, state: State, kind: str, place: Place, path: str, reason: str) -> None:
        """A worker found its disk full; raises StorageError after some tries with --once."""
        now, known = time.monotonic(), self._full.get(place)
        full = Full(now, f"{kind} {path}: {reason}", 1 if known is None else known.times + 1)
        self._full[place] = full
        self._measure(state, place)
        if known is None:
            reason = f"{reason}; free some space: it goes on by itself"
            about = {"place": place, "activity": kind, "path": path, "reason": reason}
            self._events.record("disk_full", level="error", **about)
        if self._context.once and full.times >= TRIES_ONCE:
            raise StorageError(full.reason)

    def disk_works(self, place: Place | None) -> None:
        """A worker made something durable there."""
        known = self._full.get(place) if place is not None else None
        if place is not None and known is not None and time.monotonic() - known.failed_at >= LOOK_S:
            del self._full[place]
            self._events.record("disk_has_room", place=place)

    def look(self, state: State) -> None:
        """Look whether what waits may go on; raises where --once has waited long enough."""
        now, once = time.monotonic(), self._context.once
        if once and self._context.reserve.spent:
            raise StorageError(f"{self._context.layout.state} is full; free some space, then start again")
        self.memory.look()
        waiting = self._full_disks(state)
        for place, reason in waiting.items():
            if once and now - self._full[place].failed_at > ONCE_WAITS_S:
                raise StorageError(f"{place} is full: {reason}; free some space, then start again")
        if waiting and now >= self._measure_at:
            self._measure_at = now + LOOK_S
            for place in waiting:
                self._measure(state, place)

    def _full_disks(self, state: State) -> dict[Place, str]:
        now, found = time.monotonic(), {}
        for place, known in self._full.items():
            size = self._size(state, place)
            if size is None or not known.may_try(size.free_bytes, size.total_bytes, now):
                found[place] = known.reason
        return found

    def _size(self, state: State, place: Place) -> DiskSize | None:
        if place != "state":
            disk = state.hot if place == "hot" else state.warm
            return None if disk is None else disk.measure
        found = os.statvfs(self._context.layout.state)  # local by contract: it answers
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return DiskSize(0, found.f_blocks * found.f_frsize, blocks * found.f_frsize)

    def _measure(self, state: State, place: Place) -> None:
        for disk in state.disks:
            if disk.place == place:
                disk.measure_soon()

    # The source folder

    def source_failed(self, state: State, reason: str) -> None:
        """The folder could not be seen: each file would fail in turn, so staging as a whole waits."""
        state.retries.retry_in(SOURCE, min(state.retries.failed(SOURCE), SOURCE_RETRY_S))
        if not self.source_why:
            self._events.record("staging_paused", level="warning", reason=reason)
        self.source_why = reason
        if self._context.once and state.retries.failures(SOURCE) >= TRIES_ONCE:
            raise UnavailableError(reason)

    def source_answered(self, state: State) -> None:
        """A file was read from the folder."""
        state.retries.succeeded(SOURCE)
        if self.source_why:
            self._events.record("staging_resumed")
        self.source_why = ""

    def source_trouble(self, state: State) -> str:
        """Why nothing is staged; empty when the source answers."""
        if self._is_stuck(state):
            return "staging waits for the source or hot: a worker hangs in the kernel"
        return f"staging waits: {self.source_why}" if self.source_why else ""

    @staticmethod
    def _is_stuck(state: State) -> bool:
        return any(job.abandoned and job.kind == "stage" for job in state.pool.jobs)

    # What waits

    def until(self, kind: str, state: State) -> float:
        """When jobs of a kind may begin again, monotonic seconds; `inf` while they wait for something."""
        place = state.activities[kind].writes_to
        if (kind in WRITERS and self._context.reserve.spent) or place in self._full_disks(state):
            return math.inf
        until = state.retries.not_before.get(f"/{kind}", 0.0)
        if kind != "stage":
            return until
        return math.inf if self._is_stuck(state) else max(until, state.retries.not_before.get(SOURCE, 0.0))

    def reasons(self, state: State) -> dict[str, str]:
        """Why work waits, by what it waits for."""
        found = {f"disk_{place}": why for place, why in self._full_disks(state).items()}
        if self._context.reserve.spent:
            found["disk_state"] = f"{self._context.layout.state} is full; free some space"
        if self.memory.ladder.paused:
            found["memory"] = self.memory.why
        return found

    @property
    def due(self) -> float:
        """When to look again, on the monotonic clock."""
        memory = time.monotonic() + 1.0 if self.memory.ladder.paused else math.inf
        return min(self._measure_at if self._full else math.inf, memory)
