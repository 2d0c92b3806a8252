"""Why work waits: a full disk, the source folder, memory, a retry time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from stoker.kit.daemon import DaemonContext
from stoker.kit.loop import Retries
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.observe.ledger import LOOK_S, Place, has_room
from stoker.store.errors import StorageError, Transient, UnavailableError
from stokerd.sharding.disk import Disk
from stokerd.sharding.memory import Memory

# By kind of job the disk meant when a worker finds one full; of all other kinds that is hot.
WRITES_TO: Mapping[str, Place] = {
    **dict.fromkeys(("stage", "build", "hydrate"), "hot"),
    **{"sync": "warm", "quarantine": "state"},
}
SOURCE = "/source"  # the subject that failures of the source folder are counted under
SOURCE_RETRY_S = 30.0  # upper limit of the wait: each try costs the staging of one file
ONCE_WAITS_S = 20.0  # with --once: the longest wait, for any reason
PLACES: tuple[Place, ...] = get_args(Place)


@dataclass
class Pause:
    """A reason to wait, with the monotonic times of its first and its last failure."""

    reason: str
    since: float
    failed_at: float


class Pauses:
    """All reasons to wait; with --once a reason that lasts raises."""

    def __init__(
        self, context: DaemonContext, memory: Memory, pool: WorkerPool[Any], disks: Sequence[Disk]
    ) -> None:
        self._context, self._events = context, context.events
        self._memory, self._pool, self._disks = memory, pool, disks
        self.retries = Retries()
        self._all: dict[Place | Literal["source"], Pause] = {}

    def _begin(self, what: Place | Literal["source"], reason: str) -> bool:
        """Starts or extends a pause; returns whether it is new."""
        now, known = time.monotonic(), self._all.get(what)
        self._all[what] = Pause(reason, now if known is None else known.since, now)
        return known is None

    # Recording

    def disk_full(self, job: Job[Any], reason: str) -> None:
        """Records that a worker found its disk full."""
        place = WRITES_TO.get(job.kind, "hot")
        if self._begin(place, f"{job.name}: {reason}"):
            reason = f"{reason}; free some space: it continues by itself"
            about: dict[str, Any] = {"place": place, "activity": job.kind, "path": job.subject}
            self._events.record("disk_full", **about, reason=reason)

    def disk_works(self, kind: str) -> None:
        """Ends a disk's pause after a job's durable write there, unless the write may predate the failure."""
        place = WRITES_TO.get(kind)
        if place in self._all and time.monotonic() - self._all[place].failed_at >= LOOK_S:
            del self._all[place]
            self._events.record("disk_has_room", place=place)

    def source_failed(self, reason: str) -> None:
        """Pauses all staging after a failure to read the folder: otherwise each file would fail in turn."""
        self.retries.retry_in(SOURCE, min(self.retries.failed(SOURCE), SOURCE_RETRY_S))
        if self._begin("source", reason):
            self._events.record("source_unavailable", reason=reason)

    def source_answered(self) -> None:
        self.retries.succeeded(SOURCE)
        if self._all.pop("source", None) is not None:
            self._events.record("source_available")

    def refresh(self) -> None:
        """Reads memory; with --once raises the error of a pause that lasted too long."""
        self._memory.refresh()
        if not self._context.once:
            return
        if self._context.reserve.spent:
            raise StorageError(f"{self._context.layout.state} is full; free some space, then start again")
        enough = time.monotonic() - ONCE_WAITS_S
        for place in PLACES:
            if self._is_full(place) and self._all[place].since < enough:
                reason = self._all[place].reason
                raise StorageError(f"{place} is full: {reason}; free some space, then start again")
        if (source := self._all.get("source")) is not None and source.since < enough:
            raise UnavailableError(source.reason)
        if self._memory.ladder.paused and self._memory.ladder.since < enough:
            raise Transient(f"{self._memory.why}; free some memory, then start again")

    # Reading

    def until(self, kind: str) -> float:
        """Returns when jobs of a kind may begin, monotonic seconds; inf while a condition blocks them."""
        is_stuck = kind == "stage" and self._is_stuck()
        if is_stuck or self._is_full(WRITES_TO[kind]) or self._context.reserve.spent:
            return math.inf
        causes = (f"/{kind}", SOURCE) if kind == "stage" else (f"/{kind}",)
        return max(self.retries.not_before.get(cause, 0.0) for cause in causes)

    def reasons(self) -> dict[str, str]:
        """Returns why work waits, by cause."""
        found = {f"disk_{place}": self._all[place].reason for place in PLACES if self._is_full(place)}
        if self._context.reserve.spent:
            found["disk_state"] = f"{self._context.layout.state} is full; free some space"
        if self._memory.ladder.paused:
            found["memory"] = self._memory.why
        return found

    def source_trouble(self) -> str:
        """Returns why staging waits; empty when the source answers."""
        if self._is_stuck():
            return "staging waits for the source or hot: a worker hangs in the kernel"
        pause = self._all.get("source")
        return "" if pause is None else f"staging waits: {pause.reason}"

    def _is_full(self, place: Place) -> bool:
        """Whether the last measure shows no room; retries are at least LOOK_S apart, in any case."""
        if (pause := self._all.get(place)) is None:
            return False
        is_small = any(disk.place == place and not has_room(disk.measure) for disk in self._disks)
        return is_small or time.monotonic() - pause.failed_at < LOOK_S

    def _is_stuck(self) -> bool:
        return any(job.abandoned and job.kind == "stage" for job in self._pool.jobs)
