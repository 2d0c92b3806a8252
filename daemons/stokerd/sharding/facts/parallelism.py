"""How many builders and copies the stage-shard loop has at work: set by the file, or by what is measured."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.corpus.schedule.parallelism import Bounds, Measure, begin, decide
from stoker.kit.daemon import DaemonContext
from stoker.observe.pressure import PressureGauge
from stoker.plan.positions import linear
from stoker.store.errors import DataError
from stokerd.sharding.effects import Effect, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

LOOK_EVERY_S = 2.0
FIRST_COPIES, MOST_COPIES = 2, 8


class Parallelism:
    """The numbers; `auto` in shard.workers and stage.copies lets each change, a number fixes it."""

    def __init__(self, context: DaemonContext, state: State, gauge: PressureGauge | None = None) -> None:
        pipeline = context.pipeline
        self._gauge = gauge or PressureGauge()
        self._workers, self._copies = pipeline.shard.workers, pipeline.stage.copies
        cpus = max(1, math.ceil(self._gauge.cpus))
        self._bounds = Bounds(cpus, MOST_COPIES, pipeline.shard.memory.soft)
        self._lanes = begin(self._bounds, state.pauses.memory.facts.headroom_bytes, FIRST_COPIES)
        self._seq_len = pipeline.train.seq_len
        self._was_idle = True
        self._look_at = 0.0
        self.due = math.inf  # when to look again although nothing happens, monotonic seconds
        self._set_limits(state)

    def look(self, state: State) -> Iterator[Effect]:
        """Measure, when it is time, and change what the measures agree on; an idle loop measures nothing."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        building, copying = len(state.doing("build")), len(state.doing("stage"))
        is_idle = not building and not copying
        self.due = math.inf if is_idle else self._look_at
        pressure = self._gauge.look()
        if pressure is not None and not is_idle and not self._was_idle:
            measure = Measure(
                pressure=pressure,
                headroom_bytes=state.pauses.memory.facts.headroom_bytes,
                queued=state.sources.count("staged"),
                waiting=state.sources.count("seen"),
                building=building,
                copying=copying,
                ahead_s=self._ahead_s(state),
            )
            self._lanes, changes = decide(self._lanes, measure, self._bounds, now)
            for change in changes:
                if (self._workers if change.thing == "builders" else self._copies) == "auto":
                    about: dict[str, Any] = {"from": change.before, "to": change.after}
                    yield event("parallelism_changed", what=change.thing, reason=change.reason, **about)
            self._set_limits(state)
        self._was_idle = is_idle

    def _set_limits(self, state: State) -> None:
        lanes = self._lanes
        builders = lanes.builders.wanted if self._workers == "auto" else self._workers
        copies = lanes.copies.wanted if self._copies == "auto" else self._copies
        state.limits = replace(state.limits, builders=builders, stagers=copies)

    def _ahead_s(self, state: State) -> float | None:
        """How long the hungriest run can train on what is built; None while none trains at a known rate.

        Counted from its low-water mark, which lags behind: by less than what is called far ahead.
        """
        built = state.sources.sums.tokens["train"] / self._seq_len
        ahead = []
        for run in state.placement.holdings:
            if not run.finished and run.windows_per_s:
                with contextlib.suppress(DataError):  # a plan that is just being brought in line
                    ahead.append((built - linear(run.plan, run.low_water)) / run.windows_per_s)
        return min(ahead, default=None)
