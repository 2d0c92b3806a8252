"""Why work waits: failed tries, a full disk, memory, the source folder; recorded once, and over by itself."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stoker.corpus.staging.disk_full import LOOK_S, Place, has_room
from stoker.kit.backoff import Retries
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.errors import StorageError, Transient, UnavailableError
from stokerd.sharding.facts.memory import Memory

if TYPE_CHECKING:
    from stokerd.sharding.state import State

WRITERS = ("stage", "build", "hydrate", "sync")
SOURCE = "/source"  # under which failures of the source folder are counted
SOURCE_RETRY_S = 30.0  # at the latest: each try costs one file's staging
ONCE_WAITS_S = 20.0  # with --once, for whatever makes work wait
PLACES: tuple[Place, ...] = ("hot", "warm", "state")


@dataclass
class Pause:
    """What work waits for; times are monotonic seconds, of the first and of the last failure."""

    reason: str
    since: float
    failed_at: float


class Pauses:
    """All that work waits for; with --once nothing waits for long."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self._events = context, context.events
        self.memory = Memory(context)
        self.retries = Retries()
        self._all: dict[Place | Literal["source"], Pause] = {}

    def _begin(self, what: Place | Literal["source"], reason: str) -> bool:
        """Wait, or wait on; returns whether that is news."""
        now, known = time.monotonic(), self._all.get(what)
        self._all[what] = Pause(reason, now if known is None else known.since, now)
        return known is None

    # What happened

    def disk_full(self, state: State, kind: str, place: Place, path: str, reason: str) -> None:
        """A worker found its disk full."""
        for disk in state.disks:
            if disk.place == place:
                disk.measure_soon()
        if self._begin(place, f"{kind} {path}: {reason}"):
            reason = f"{reason}; free some space: it goes on by itself"
            about: dict[str, Any] = {"place": place, "activity": kind, "path": path}
            self._events.record("disk_full", level="error", **about, reason=reason)

    def disk_works(self, place: Place | None) -> None:
        """A worker made something durable there, which no write of before the disk was full shows."""
        known = None if place is None else self._all.get(place)
        if place is not None and known is not None and time.monotonic() - known.failed_at >= LOOK_S:
            del self._all[place]
            self._events.record("disk_has_room", place=place)

    def source_failed(self, reason: str) -> None:
        """The folder could not be seen: each file would fail in turn, so staging as a whole waits."""
        self.retries.retry_in(SOURCE, min(self.retries.failed(SOURCE), SOURCE_RETRY_S))
        if self._begin("source", reason):
            self._events.record("staging_paused", level="warning", reason=reason)

    def source_answered(self) -> None:
        """A file was read from the folder."""
        self.retries.succeeded(SOURCE)
        if self._all.pop("source", None) is not None:
            self._events.record("staging_resumed")

    def look(self, state: State) -> None:
        """Look at memory; raises where --once has waited long enough."""
        self.memory.look()
        if not self._context.once:
            return
        if self._context.reserve.spent:
            raise StorageError(f"{self._context.layout.state} is full; free some space, then start again")
        enough = time.monotonic() - ONCE_WAITS_S
        for place in PLACES:
            if self._is_full(state, place) and self._all[place].since < enough:
                reason = self._all[place].reason
                raise StorageError(f"{place} is full: {reason}; free some space, then start again")
        if (source := self._all.get("source")) is not None and source.since < enough:
            raise UnavailableError(source.reason)
        if self.memory.ladder.paused and self.memory.ladder.since < enough:
            raise Transient(f"{self.memory.why}; free some memory, then start again")

    # What waits

    def until(self, kind: str, state: State) -> float:
        """When jobs of a kind may begin again, monotonic seconds; `inf` while they wait for something."""
        place = state.activities[kind].writes_to
        is_full = place is not None and self._is_full(state, place)
        if is_full or (kind in WRITERS and self._context.reserve.spent):
            return math.inf
        until = self.retries.not_before.get(f"/{kind}", 0.0)
        if kind != "stage":
            return until
        return math.inf if _is_stuck(state) else max(until, self.retries.not_before.get(SOURCE, 0.0))

    def reasons(self, state: State) -> dict[str, str]:
        """Why work waits, by what it waits for."""
        found = {f"disk_{place}": self._all[place].reason for place in PLACES if self._is_full(state, place)}
        if self._context.reserve.spent:
            found["disk_state"] = f"{self._context.layout.state} is full; free some space"
        if self.memory.ladder.paused:
            found["memory"] = self.memory.why
        return found

    def source_trouble(self, state: State) -> str:
        """Why nothing is staged; empty when the source answers."""
        if _is_stuck(state):
            return "staging waits for the source or hot: a worker hangs in the kernel"
        pause = self._all.get("source")
        return "" if pause is None else f"staging waits: {pause.reason}"

    def _is_full(self, state: State, place: Place) -> bool:
        """Whether no measure taken since a write failed there shows room; tries keep a small distance."""
        if (pause := self._all.get(place)) is None:
            return False
        size = self._size(state, place)
        return not has_room(size) or time.monotonic() - pause.failed_at < LOOK_S

    def _size(self, state: State, place: Place) -> DiskSize | None:
        if place != "state":
            return next((disk.measure for disk in state.disks if disk.place == place), None)
        found = os.statvfs(self._context.layout.state)  # local by contract: it answers
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return DiskSize(0, found.f_blocks * found.f_frsize, blocks * found.f_frsize)


def _is_stuck(state: State) -> bool:
    return any(job.abandoned and job.kind == "stage" for job in state.pool.jobs)
