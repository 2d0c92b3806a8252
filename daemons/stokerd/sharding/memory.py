"""How much memory builds may take: a ladder of fewer rows a batch, then fewer builders, then a pause."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from stoker.config.units import format_bytes
from stoker.corpus.schedule.outcome import ALONE, READ_ROWS, SMALLEST, Attempt, Ladder
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.observe.machine import MemoryFacts, MemoryWatch

ROOMY = 2  # times the soft budget: the memory that one builder needs to resume after a pause


class Memory:
    """Memory state since the daemon started. `why` is the reason of the pause; `needs` says, by path, how far
    the batch size is reduced for its file, up to ALONE: built with no other builder running."""

    def __init__(self, context: DaemonContext) -> None:
        self._events = context.events
        budget = context.pipeline.shard.memory
        self._soft, self._hard = budget.soft, budget.hard
        self._watch = MemoryWatch()
        self._most = 1
        self.needs: dict[str, int] = {}
        self.facts = self._watch.sample()
        self.ladder = Ladder()
        self.why = ""

    def look_now(self) -> MemoryFacts:
        self.facts = self._watch.sample()
        return self.facts

    # Before a build

    def attempt(self, path: str, *, others: bool) -> Attempt:
        """Returns the conditions under which a build of the path's file begins now."""
        need = self.needs.get(path, 0)
        rows = min(SMALLEST, max(self.ladder.rows, need))
        return Attempt(rows, need == ALONE and not others, self.look_now().headroom_bytes, self.ladder.step)

    def plan(
        self, limits: Limits, building: Collection[str], ready: Collection[str]
    ) -> tuple[Limits, str | None, list[str]]:
        """Returns the limits with as many builders as memory allows, the path to build alone now, and
        the other paths that wait to be built alone; `ready` are the paths that could be built."""
        self._most = max(1, limits.builders)
        builders = self.ladder.builders(self._most)
        waiting = [path for path, need in self.needs.items() if need == ALONE]
        alone = next((path for path in waiting if path in building), None)
        if alone is None and self.facts.headroom_bytes > self._hard:
            alone = next((path for path in waiting if path in ready), None)
        if alone is not None:
            waiting.remove(alone)
            builders = min(builders, 0 if {*building} - {alone} else 1)
        return replace(limits, builders=builders), alone, waiting

    # After a build

    def failed(self, path: str, attempt: Attempt, reason: str, *, is_machines: bool) -> str | None:
        """Handles a build that ran out of memory; returns the finding's detail if its file is to blame.

        `is_machines`: the machine was short of memory; otherwise the worker exceeded its budget.
        """
        if attempt.is_blamed(self._hard):
            self.needs.pop(path, None)
            spare = format_bytes(attempt.headroom_bytes)
            return f"{reason}; built alone, in batches of {READ_ROWS[-1]} rows, with {spare} to spare"
        if is_machines:
            self._go_down(attempt, reason)
        before = self.read_less(path, attempt.rows + 1)
        if before < self.needs[path] == ALONE:
            words = f"it is built alone, once more than {format_bytes(self._hard)} are to spare"
            self._events.record("source_waits_for_memory", path=path, reason=words)
        return None

    def read_less(self, path: str, need: int) -> int:
        """Reduces the batch size for the path's file; returns the reduction before."""
        before = self.needs.get(path, 0)
        self.needs[path] = max(before, need)
        return before

    def succeeded(self, path: str) -> None:
        self.needs.pop(path, None)
        before, self.ladder = self.ladder, self.ladder.succeeded(time.monotonic())
        if self.ladder.step != before.step:
            self._events.record("memory_ladder_up", reason="builds end well again", **self.shown())

    def _go_down(self, attempt: Attempt, reason: str) -> None:
        before, self.ladder = self.ladder, self.ladder.down(attempt.step, self._most, time.monotonic())
        if self.ladder.paused and not before.paused:
            need = format_bytes(ROOMY * self._soft)
            self.why = f"one builder in the smallest batches ran out of memory; waits for {need}"
            self._events.record("memory_paused", reason=f"{reason}; {self.why}")
        elif self.ladder.step != before.step:
            self._events.record("memory_ladder_down", reason=reason, **self.shown())

    # Looking

    def refresh(self) -> None:
        """Reads the memory counters and ends the pause if enough is free."""
        headroom_bytes = self.look_now().headroom_bytes
        was_paused = self.ladder.paused
        self.ladder = self.ladder.rested(headroom_bytes, ROOMY * self._soft, time.monotonic())
        if was_paused and not self.ladder.paused:
            self.why = ""
            self._events.record("memory_resumed", **self.shown())

    def shown(self) -> dict[str, Any]:
        """Returns the fields for status and events."""
        return {
            "step": self.ladder.step,
            "read_rows": READ_ROWS[self.ladder.rows],
            "builders": self.ladder.builders(self._most),
            "headroom_bytes": self.facts.headroom_bytes,
        }
