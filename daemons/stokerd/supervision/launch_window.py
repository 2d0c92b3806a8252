"""A plan in parts: after a rollback, what is planned from there on may be more than the hot disk holds.

Then a launch goes as far as hot allows, seals and ends; what it read leaves, what comes next is brought back,
and the next launch goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from stoker.config.schema import Pipeline
from stoker.kit.events import Events
from stoker.plan.growth import AHEAD_BATCHES
from stoker.plan.positions import Position, Skip, left_after
from stoker.supervise.run.planner import Planner

STALL_S = 30.0  # so long no set came back: then there is no room for all of them


class LaunchWindow:
    """`reach` is where the next launch stops, None: it may read all that is planned."""

    def __init__(self, pipeline: Pipeline, events: Events, planner: Planner, reach: Position | None) -> None:
        self.events, self.planner = events, planner
        self.batch = pipeline.train.global_batch
        self.reach = reach  # as it was when an earlier supervisor ended
        self._cold = -1
        self._since = 0.0

    def look(self, position: Position, skips: Sequence[Skip]) -> None:
        """Decide how far a launch from a position may go, by what is on hot and what comes back."""
        cold, now = len(self.planner.cold(self.planner.needed(position, skips))), time.monotonic()
        if cold != self._cold:
            self._cold, self._since = cold, now
        if not cold:
            self.reach = None
        elif self.reach is not None or now - self._since >= STALL_S:
            in_parts = self.reach is not None
            still = now - self._since >= 2 * STALL_S  # not even the few batches a launch is worth fit
            self.reach = self.planner.reach(position, skips, (1 if still else AHEAD_BATCHES) * self.batch)
            if not in_parts and self.reach is not None:
                advice = "hot does not hold all that is planned from here; it is trained on in parts"
                self.events.record("plan_in_parts", "warning", cold_sets=cold, message=advice)

    def until(self, step: int, position: Position, skips: Sequence[Skip]) -> int | None:
        """The last step that a launch from here makes of what it may read; None: as far as it likes."""
        if self.reach is None:
            return None
        plan = self.planner.plan
        windows = left_after(plan, position, skips) - left_after(plan, self.reach, skips)
        return step + windows // self.batch
