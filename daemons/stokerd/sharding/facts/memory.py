"""Memory in the stage-shard loop: smaller batches and fewer builders for the machine, or for one file."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes
from stoker.corpus.schedule.memory_steps import ALONE, READ_ROWS, SMALLEST, Attempt, Ladder
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.observe.headroom import MemoryFacts, MemoryWatch

if TYPE_CHECKING:
    from stokerd.sharding.state import State

ROOMY = 2  # times the soft budget: what one builder needs to go on after a pause


class Memory:
    """What is known of memory since the daemon started; `why` is what the pause is about, `needs` how much
    smaller than usual a path's file is read, up to ALONE."""

    def __init__(self, context: DaemonContext) -> None:
        self._events = context.events
        budget = context.pipeline.shard.memory
        self._soft, self._hard = budget.soft, budget.hard
        self._watch = MemoryWatch()
        self._most = 1
        self.needs: dict[str, int] = {}
        self.facts = self._watch.look()
        self.ladder = Ladder()
        self.why = ""

    def look_now(self) -> MemoryFacts:
        """Read the counters, for evidence."""
        self.facts = self._watch.look()
        return self.facts

    # Before a build

    def attempt(self, path: str, *, others: bool) -> Attempt:
        """Under which conditions a build of the path's file begins now."""
        need = self.needs.get(path, 0)
        rows = min(SMALLEST, max(self.ladder.rows, need))
        return Attempt(rows, need == ALONE and not others, self.look_now().headroom_bytes, self.ladder.step)

    def plan(self, state: State) -> tuple[Limits, str | None, list[str]]:
        """The limits with as many builders as memory allows, the path whose turn it is to be built with none
        beside it, and those that wait for such a turn."""
        self._most = max(1, state.limits.builders)
        builders = self.ladder.builders(self._most)
        building = state.doing("build")
        waiting = [path for path, need in self.needs.items() if need == ALONE]
        alone = next((path for path in waiting if path in building), None)
        if alone is None and waiting and self.facts.headroom_bytes > self._hard:
            staged = {one.path for one in state.sources.in_state("staged", "building")}
            ready = (path for path in waiting if path in staged and state.retries.allows(path))
            alone = next(ready, None)
        if alone is not None:
            waiting.remove(alone)
            builders = min(builders, 0 if {*building} - {alone} else 1)
        return replace(state.limits, builders=builders), alone, waiting

    # After a build

    def failed(self, path: str, attempt: Attempt, reason: str, *, is_machines: bool) -> str | None:
        """A build ran out of memory; returns the detail of the finding if its file is to blame.

        `is_machines`: memory was short; otherwise the worker took more than its budget.
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
            self._events.record("source_waits_for_memory", level="warning", path=path, reason=words)
        return None

    def read_less(self, path: str, need: int) -> int:
        """Have the path's file read in smaller batches from now on; returns what was needed before."""
        before = self.needs.get(path, 0)
        self.needs[path] = max(before, need)
        return before

    def succeeded(self, path: str) -> None:
        """A build came to its end."""
        self.needs.pop(path, None)
        before, self.ladder = self.ladder, self.ladder.succeeded(time.monotonic())
        if self.ladder.step != before.step:
            self._events.record("memory_ladder_up", reason="builds end well again", **self.shown())

    def _go_down(self, attempt: Attempt, reason: str) -> None:
        before, self.ladder = self.ladder, self.ladder.down(attempt.step, self._most, time.monotonic())
        if self.ladder.paused and not before.paused:
            need = format_bytes(ROOMY * self._soft)
            self.why = f"one builder in the smallest batches ran out of memory; goes on with {need} to spare"
            self._events.record("memory_paused", level="error", reason=f"{reason}; {self.why}")
        elif self.ladder.step != before.step:
            self._events.record("memory_ladder_down", level="warning", reason=reason, **self.shown())

    # Looking

    def look(self) -> None:
        """See how much there is to spare, and whether a pause is over."""
        headroom_bytes = self.look_now().headroom_bytes
        before, self.ladder = (
            self.ladder,
            self.ladder.rested(headroom_bytes, ROOMY * self._soft, time.monotonic()),
        )
        if before.paused and not self.ladder.paused:
            self.why = ""
            self._events.record("memory_resumed", **self.shown())

    def shown(self) -> dict[str, Any]:
        """How it is, for status and events."""
        return {
            "step": self.ladder.step,
            "read_rows": READ_ROWS[self.ladder.rows],
            "builders": self.ladder.builders(self._most),
            "headroom_bytes": self.facts.headroom_bytes,
        }
