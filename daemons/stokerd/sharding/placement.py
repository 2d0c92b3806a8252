"""Which shard sets live on hot: what the runs hold joined with what lies there, and the intent to evict.

The decisions are plan.residency's. Nothing is moved here: an intent to evict is written under the lock that
the supervisors hold, shared, while they name sets in a plan; the moves follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.retries import Retries
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.residency import Floors, ShardSet, held, next_use, to_evict, to_hydrate, urgency
from stoker.store.errors import DataError, storage_errors
from stokerd.common.alerts import Told
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.space import TOLD_AFTER_S, DiskSpace
from stokerd.sharding.warm_disk import NoWarm, WarmYard

HYDRATIONS = 2
EVICT_AT_ONCE = 8  # intents written under one hold of the lock: supervisors wait for it
NOTHING_LEFT_S, LOCKED_S = 2.0, 0.1  # until the next try


@dataclass(frozen=True)
class Wants:
    """What the runs want: paths to bring back now, all that are wanted, how many of them are not hot, and the
    bytes of those that wait; `blocked`: they wait for room, not for their turn."""

    hydrate: tuple[str, ...] = ()
    wanted: frozenset[str] = frozenset()
    cold_bytes: int = 0
    cold: int = 0
    blocked: bool = False


@dataclass
class Residence:
    """Knows what the runs hold, as it was last read; `why` is why nothing more can leave hot."""

    context: DaemonContext
    book: SourceBook
    space: DiskSpace
    pinning: Pinning
    told: Told
    patience: Retries
    warm: WarmYard | NoWarm
    wants: Wants = field(default_factory=Wants)
    why: str = ""
    holdings: list[Holdings] = field(default_factory=list)
    damaged: bool = False
    _seen: object = None
    _again_at: float = 0.0
    _tried: int = -1
    _blocked_since: float = 0.0
    _found: tuple[object, list[ShardSet], dict[str, str]] | None = None
    _chosen: tuple[list[ShardSet], list[Holdings], set[str], int | None] | None = None

    def watch(self) -> None:
        """Wake up when a run's needs change, a new run's too."""
        runs = self.context.layout.runs
        self.context.waiter.watch(runs)
        with contextlib.suppress(FileNotFoundError):
            for run in runs.iterdir():
                self.context.waiter.watch(run)

    def look(self) -> None:
        """Read again what the runs hold, if it changed. A damaged plan holds everything: nothing leaves."""
        seen = _fingerprint(self.context.layout.runs)
        if seen == self._seen:
            return
        self._seen, self._again_at = seen, 0.0
        self.watch()
        try:
            self.holdings = read_holdings(self.context.layout)
        except DataError as error:
            self.damaged = True
            reason = f"{error}; until then no shard set leaves hot"
            self.told.trouble("plan_unreadable", level="error", reason=reason)
        else:
            self.damaged = False
            self.told.over("plan_unreadable")

    def urgent(self) -> frozenset[str]:
        """The keys somebody waits for, whether or not there is a set of that key."""
        return frozenset(urgency(self.holdings))

    def choose(self, hydrating: Collection[str]) -> None:
        """Decide what to bring back; `hydrating` are the paths whose sets are being brought back now."""
        if not any(run.wants for run in self.holdings):
            self.wants, self._chosen = Wants(), None
            return
        busy = {str(self.book.sources[path].key) for path in hydrating}
        room = self.space.for_hydrations()
        sets, paths = self._sets()
        chosen = (sets, self.holdings, busy, room)
        if self._chosen is not None and self._chosen[0] is sets and self._chosen[1:] == chosen[1:]:
            return
        self._chosen = chosen
        keys, waiting = to_hydrate(
            sets,
            self.holdings,
            room_bytes=room or 0,
            at_once=HYDRATIONS,
            busy=busy,
        )
        wanted = [key for key in urgency(self.holdings) if key in paths]
        cold = [key for key in wanted if self.book.sources[paths[key]].evicted and key not in busy]
        self.wants = Wants(
            hydrate=tuple(paths[key] for key in keys),
            wanted=frozenset(paths[key] for key in wanted),
            cold_bytes=waiting,
            cold=len(cold),
            blocked=waiting > 0 and room is not None and len(keys) + len(busy) < HYDRATIONS,
        )

    def make_room(self, needed_bytes: int, hydrating: Collection[str]) -> None:
        """Write the intent to evict what should leave, so that what is needed now finds room."""
        now = time.monotonic()
        free = self.space.free()
        waits = self.tried and now < self._again_at
        if not self.warm.known or self.damaged or free is None or waits:
            return
        if free + self._leaving() >= self.space.wanted_free(needed_bytes):
            self.why, self._tried = "", self.book.changes
            return
        self._again_at, self._tried = now + NOTHING_LEFT_S, self.book.changes
        if not self._to_evict(needed_bytes, hydrating):
            return
        with _alone(self.context.layout.shard_sets_lock) as held_alone:
            if not held_alone:
                self._again_at = now + LOCKED_S
                return
            self.look()
            if self.damaged:
                return
            for path in self._to_evict(needed_bytes, hydrating)[:EVICT_AT_ONCE]:
                self.book.write(replace(self.book.sources[path], evicting=True))
        self._again_at = now

    def _to_evict(self, needed_bytes: int, hydrating: Collection[str]) -> list[str]:
        sets, paths = self._sets()
        pin = self.pinning.pin
        listing = [
            self.book.sources[path] for path in (pin.listing if pin else ()) if path in self.book.sources
        ]
        evict = self.context.pipeline.evict
        keys, self.why = to_evict(
            sets,
            self.holdings,
            next_use(self.holdings, [str(source.key) for source in listing if source.key in paths]),
            free_bytes=(self.space.free() or 0) + self._leaving(),
            wanted_free_bytes=self.space.wanted_free(needed_bytes),
            floors=Floors(evict.keep_hot_sets, evict.min_active_tokens),
            reserve_bytes=self.context.pipeline.stage.free_floor,
            busy={str(self.book.sources[path].key) for path in hydrating},
        )
        return [paths[key] for key in keys]

    def tell_too_small(self) -> None:
        """Say what to change when what the runs hold long leaves no room for what they want next."""
        wanted = self.wants.cold_bytes
        now = time.monotonic()
        if not self.wants.blocked or not self.why:
            self._blocked_since = now
        if now - self._blocked_since < TOLD_AFTER_S:
            return
        holding = held(self.holdings)
        held_bytes = sum(one.bytes for one in self._sets()[0] if one.hot and one.key in holding)
        figures: dict[str, Any] = {"held_bytes": held_bytes, "wanted_bytes": wanted}
        figures["free_bytes"] = self.space.free()
        reason = (
            f"runs hold {format_bytes(held_bytes)} on hot and want {format_bytes(wanted)} more: {self.why}; "
            "lower plan.segment_tokens or train.checkpoint.keep_last, or give hot more room"
        )
        self.told.trouble("hot_too_small", level="error", reason=reason, **figures)

    @property
    def consumed(self) -> bool:
        """Whether some run goes on, which gives room by and by."""
        return any(run.plan.windows and not run.finished for run in self.holdings)

    @property
    def tried(self) -> bool:
        """Whether it was tried to have sets leave since a record last changed."""
        return self._tried == self.book.changes

    @property
    def due(self) -> float:
        """When to try again, monotonic seconds."""
        return self._again_at

    def _leaving(self) -> int:
        sources = self.book.sources
        leaving = (sources[path] for path in sources.evicting)
        return sum(self.space.estimate.published(source) for source in leaving if not source.evicted)

    def _sets(self) -> tuple[list[ShardSet], dict[str, str]]:
        """Every published set, and the path it belongs to by its key; the same while nothing changed."""
        waits = frozenset(path for path in self.patience.not_before if not self.patience.allows(path))
        asked = (self.book.changes, self.space.estimate, waits)
        if self._found is not None and self._found[0] == asked:
            return self._found[1], self._found[2]
        paths: dict[str, str] = {}
        sets = []
        for source in self.book.sources.values():
            if source.state in PUBLISHED and source.key is not None and source.key not in paths:
                paths[source.key] = source.path
                sets.append(self._set(source))
        self._found = asked, sets, paths
        return sets, paths

    def _set(self, source: Source) -> ShardSet:
        tokens = int((source.books or {}).get("train", {}).get("tokens", 0))
        size = self.space.estimate.published(source)
        # One that could not be moved just now stays where it is until it is its turn again.
        movable = source.on_warm and self.patience.allows(source.path)
        return ShardSet(str(source.key), size, tokens, hot=source.hot, warm=movable)


def _fingerprint(runs: Path) -> object:
    """Changes when a run comes or goes, or its plan or consumed.json is written."""
    found = []
    with storage_errors("look at", runs), contextlib.suppress(FileNotFoundError):
        for run in sorted(runs.iterdir()):
            for name in ("plan.jsonl", "consumed.json"):
                try:
                    about = (run / name).stat()
                except (FileNotFoundError, NotADirectoryError):
                    continue
                found.append((run.name, name, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the lock file alone, if that is possible at once: who names sets in a plan is not waited for."""
    with storage_errors("open", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
