"""How many builders and copies the stage-shard loop has at work: set by the file, or by what is measured."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.corpus.schedule.parallelism import Bounds, Measure, begin, decide
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import WorkerPool
from stoker.observe.pressure import PressureGauge
from stoker.plan.positions import linear
from stoker.store.errors import DataError
from stokerd.sharding.placement import Residence
from stokerd.sharding.source_store import SourceBook

LOOK_EVERY_S = 2.0
FIRST_COPIES, MOST_COPIES = 2, 8


class ParallelismDesk:
    """Holds the numbers; `auto` in shard.workers and stage.copies lets each change, a number fixes it."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        book: SourceBook,
        residence: Residence,
        headroom: Callable[[], int],
        gauge: PressureGauge | None = None,
    ) -> None:
        self._context, self._crew, self._book = context, crew, book
        self._residence, self._headroom = residence, headroom
        self._gauge = gauge or PressureGauge()
        self._workers, self._copies = context.pipeline.shard.workers, context.pipeline.stage.copies
        self._lanes = begin(self._bounds(), headroom(), FIRST_COPIES)
        self._look_at = 0.0
        self._was_idle = True
        metrics = context.metrics
        self._show_builders = metrics.gauge("builders_wanted", "How many builders may be at work.")
        self._show_copies = metrics.gauge("copies_wanted", "How many files may be brought to hot at once.")

    def bounded(self, limits: Limits) -> Limits:
        """The limits with the numbers as of now."""
        return replace(limits, builders=self.builders, stagers=self.copies)

    @property
    def builders(self) -> int:
        """How many builders there may be, but for what memory does not allow."""
        return self._lanes.builders.wanted if self._workers == "auto" else self._workers

    @property
    def copies(self) -> int:
        """How many files may be brought to hot at once."""
        return self._lanes.copies.wanted if self._copies == "auto" else self._copies

    def look(self) -> None:
        """Measure, when it is time, and change what the measures agree on; an idle loop measures nothing."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        idle = not self._at_work
        pressure = self._gauge.look()
        if pressure is not None and not idle and not self._was_idle:
            measure = Measure(
                pressure=pressure,
                headroom_bytes=self._headroom(),
                queued=self._book.sources.count("staged"),
                waiting=self._book.sources.count("seen"),
                building=self._doing("build"),
                copying=self._doing("stage"),
                ahead_s=self._ahead_s(),
            )
            self._lanes, changes = decide(self._lanes, measure, self._bounds(), now)
            for change in changes:
                if (self._workers if change.thing == "builders" else self._copies) == "auto":
                    told: dict[str, Any] = {"from": change.before, "to": change.after}
                    self._context.events.record(
                        "parallelism_changed", what=change.thing, reason=change.reason, **told
                    )
        self._was_idle = idle

    @property
    def due(self) -> float:
        """When to look again, monotonic seconds; inf while nothing is going on."""
        return self._look_at if self._at_work else math.inf

    def show(self) -> dict[str, Any]:
        """Set the gauges; returns the part of the status snapshot."""
        self._show_builders.set(self.builders)
        self._show_copies.set(self.copies)
        return {"parallelism": {"builders": self.builders, "copies": self.copies}}

    @property
    def _at_work(self) -> bool:
        return any(each in ("stage", "build") for each in self._crew.busy.values())

    def _doing(self, activity: str) -> int:
        return sum(1 for each in self._crew.busy.values() if each == activity)

    def _bounds(self) -> Bounds:
        cpus = max(1, math.ceil(self._gauge.cpus))
        return Bounds(cpus, MOST_COPIES, self._context.pipeline.shard.memory.soft)

    def _ahead_s(self) -> float | None:
        """How long the hungriest run can train on what is built; None while none trains at a known rate.

        Counted from its low-water mark, which lags behind: by less than what is called far ahead.
        """
        built = self._book.sources.sums.tokens["train"] / self._context.pipeline.train.seq_len
        ahead = []
        for run in self._residence.holdings:
            if not run.finished and run.windows_per_s:
                with contextlib.suppress(DataError):  # a plan that is just being brought in line
                    ahead.append((built - linear(run.plan, run.low_water)) / run.windows_per_s)
        return min(ahead, default=None)
