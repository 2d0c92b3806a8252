"""Disks that were full when a worker wrote: its kind pauses, said once, and goes on when there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from stoker.corpus.staging.disk_full import LOOK_S, Full, Place
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Disk
from stoker.store.errors import StorageError

# Where each activity writes.
WRITES: Mapping[str, Place] = {
    "stage": "hot",
    "build": "hot",
    "hydrate": "hot",
    "sync": "warm",
    "quarantine": "state",
}
TRIES_ONCE = 5
ONCE_WAITS_S = 20.0  # with --once, for room


class FullDisks:
    """`measures` give a disk's size as measured since the last failure there (None: not yet); `ask` asks for
    such a measure."""

    def __init__(
        self,
        context: DaemonContext,
        measures: Mapping[Place, Callable[[], Disk | None]],
        ask: Mapping[Place, Callable[[], None]],
    ) -> None:
        self._context, self._events = context, context.events
        self._measures, self._ask = measures, ask
        self._full: dict[Place, Full] = {}
        self._reasons: dict[Place, str] = {}
        self._ask_at = 0.0

    def failed(self, activity: str, path: str, reason: str) -> None:
        """A worker found its disk full at a source's path; with --once gives up after some tries."""
        place, now = WRITES.get(activity, "hot"), time.monotonic()
        full = self._full.get(place)
        self._full[place] = Full(place, now, now) if full is None else full.again(now)
        self._reasons[place] = f"{activity} {path}: {reason}"
        self._ask[place]()
        if full is None:
            self._events.record(
                "disk_full",
                level="error",
                place=place,
                activity=activity,
                path=path,
                reason=f"{reason}; free some space: it goes on by itself",
            )
        if self._context.once and self._full[place].times >= TRIES_ONCE:
            raise StorageError(self._reasons[place])

    def works(self, activity: str) -> None:
        """An activity's worker made something durable: its disk has room again."""
        place = WRITES.get(activity)
        full = self._full.get(place) if place is not None else None
        if place is not None and full is not None and time.monotonic() - full.failed_at >= LOOK_S:
            del self._full[place]
            self._events.record("disk_has_room", place=place)

    def look(self) -> None:
        """While something waits: have the disks measured every few seconds; with --once not for long."""
        now = time.monotonic()
        for place, full in self._full.items():
            if self._context.once and now - full.failed_at > ONCE_WAITS_S and not self._may_try(place, now):
                raise StorageError(
                    f"{place} is full: {self._reasons[place]}; free some space, then start again"
                )
        if self._full and now >= self._ask_at:
            self._ask_at = now + LOOK_S
            for place in self._full:
                if not self._may_try(place, now):
                    self._ask[place]()

    @property
    def due(self) -> float:
        """When to look again at the latest, on the monotonic clock."""
        return self._ask_at if self._full else float("inf")

    def waiting(self) -> dict[Place, str]:
        """The places where nothing is written now, and what the failed write said."""
        now = time.monotonic()
        return {place: self._reasons[place] for place in self._full if not self._may_try(place, now)}

    def _may_try(self, place: Place, now: float) -> bool:
        disk = self._measures[place]()
        if disk is None:
            return False
        return self._full[place].may_try(disk.free_bytes, disk.total_bytes, now)
