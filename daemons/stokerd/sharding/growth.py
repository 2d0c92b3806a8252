"""Builds that need more room on hot than they claimed: they are answered, and wait where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.schedule.growth import AGAIN, Growth, Raise, TooLarge, decide_growth
from stoker.corpus.staging.size_estimate import FILES_BYTES
from stoker.kit.events import Events
from stoker.kit.workers.pool import Job, WorkerPool
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.space import DiskSpace


@dataclass(frozen=True)
class Held:
    """A content whose build was set back, and the bytes that its set needed by then."""

    sha256: str
    needed: int


class GrowthDesk:
    """A restart forgets who was set back: the build then comes to the same end again."""

    def __init__(
        self, events: Events, crew: WorkerPool[Any], book: SourceBook, space: DiskSpace, hot: HotYard
    ) -> None:
        self._events, self._crew, self._book = events, crew, book
        self._space, self._hot = space, hot
        self._held: dict[str, Held] = {}

    def begin(self, source: Source) -> int:
        """The bytes of data that a build may write from its start; one that was set back is given more."""
        if (held := self._held.pop(source.path, None)) is not None:
            self._space.grant(source, int(held.needed * AGAIN))
        return self._space.granted(source) - FILES_BYTES

    def hear(self, job: Job[Any], message: Mapping[str, Any]) -> None:
        """A build asks for room: that is answered once hot was measured."""
        job.facts["asks"] = {name: int(message[name]) + FILES_BYTES for name in ("written", "needed")}
        self._hot.measure_soon()

    def act(self, *, linked: bool) -> None:
        """Answer who asks; what is granted is in the ledger first."""
        for job in self._crew.jobs:
            asks = job.facts.get("asks")
            growth = None if asks is None else self._space.growth(self._book.sources[job.subject], **asks)
            if growth is None:
                continue
            del job.facts["asks"]
            decision = decide_growth(growth)
            if isinstance(decision, Raise):
                self._space.grant(self._book.sources[job.subject], decision.to)
                self._space.refresh(linked=linked)
                job.worker.send({"room": decision.to - FILES_BYTES})
            else:
                job.facts["refused"] = growth, decision
                job.worker.send({"room": 0})

    def refused(self, job: Job[Any], source: Source) -> dict[str, Any] | None:
        """A build ended because it got no room: the finding against its file, None where it is to wait."""
        growth: Growth
        growth, decision = job.facts["refused"]
        self._space.begins_anew(source)
        figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
        if isinstance(decision, TooLarge):
            detail = (
                f"its shard set took {format_bytes(growth.needed)} and was not done, where "
                f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
            )
            finding = {"reason": EXCEEDS_DISK, "row_group": job.facts.get("row_group"), "column": None}
            return {**finding, "detail": detail, **figures, "room_bytes": growth.most}
        self._held[source.path] = Held(source.sha256, growth.needed)
        self._events.record(
            "build_set_back",
            level="warning",
            path=source.path,
            reason=f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
            "it begins again once there is more room",
            **figures,
            room_bytes=growth.limit,
        )
        return None

    @property
    def needs(self) -> dict[str, int]:
        """The bytes in which each build that was set back begins again, by path."""
        return {path: int(held.needed * AGAIN) for path, held in self._held.items()}

    def held_back(self) -> list[str]:
        """The paths that are not to be built yet; one at a time begins again, where there is room."""
        waiting: list[str] = []
        free = True
        for path, held in list(self._held.items()):
            source = self._book.sources.get(path)
            if source is None or source.sha256 != held.sha256 or source.state != "building":
                del self._held[path]
            elif path not in self._crew and free and self._fits(source, int(held.needed * AGAIN)):
                free = False
            else:
                waiting.append(path)
        return waiting

    def _fits(self, source: Source, needed: int) -> bool:
        growth = self._space.growth(source, written=0, needed=needed)
        return growth is not None and growth.needed <= growth.limit
