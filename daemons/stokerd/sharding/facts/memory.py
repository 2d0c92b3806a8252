"""Memory in the stage-shard loop: smaller batches and fewer builders for the machine, or for one file."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes
from stoker.corpus.schedule.memory_steps import READ_ROWS, Attempt, Burden, Ladder, heavier, is_blamed
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.observe.headroom import MemoryFacts, MemoryWatch
from stoker.store.errors import Transient

if TYPE_CHECKING:
    from stokerd.sharding.state import State

LOOK_EVERY_S = 1.0
ROOMY = 2  # times the soft budget: what one builder needs to go on after a pause
ONCE_WAITS_S = 120.0  # with --once, for memory to come back


class Memory:
    """What is known of memory since the daemon started; `why` is what the pause is about."""

    def __init__(self, context: DaemonContext) -> None:
        self._events, self._once = context.events, context.once
        budget = context.pipeline.shard.memory
        self._soft, self._hard = budget.soft, budget.hard
        self._watch = MemoryWatch()
        self._most = 1
        self._burdens: dict[str, Burden] = {}
        self._waiting: set[str] = set()  # the files whose wait was recorded
        self._look_at = 0.0
        self.facts = self._watch.look()
        self.ladder = Ladder()
        self.why = ""

    # Before a build

    def attempt(self, path: str, *, others: bool) -> Attempt:
        """Under which conditions a build of the path's file begins now."""
        burden = self._burden(path)
        rows = max(self.ladder.rows, burden.rows)
        return Attempt(rows, burden.alone and not others, self.look_now().headroom_bytes, self.ladder.step)

    def limited(self, limits: Limits, state: State, alone: str | None) -> Limits:
        """The limits with as many builders as memory allows."""
        self._most = max(1, limits.builders)
        builders = self.ladder.builders(self._most)
        if alone is not None:
            others = any(path != alone for path in state.doing("build"))
            builders = min(builders, 0 if others else 1)
        return replace(limits, builders=builders)

    def next_alone(self, state: State) -> str | None:
        """The path whose turn it is to be built with nothing beside it, or that is being built so."""
        heavy = [path for path, burden in self._burdens.items() if burden.alone]
        building = state.doing("build") if heavy else []
        for path in heavy:
            if path in building:
                return path
        if self.facts.headroom_bytes <= self._hard:
            return None
        return next((path for path in heavy if self._is_ready(path, state)), None)

    @staticmethod
    def _is_ready(path: str, state: State) -> bool:
        source = state.sources.get(path)
        is_staged = source is not None and source.state in ("staged", "building")
        is_idle = path not in state.pool and path not in state.records.convicted
        return is_staged and is_idle and state.retries.allows(path)

    def held_back(self, alone: str | None) -> Collection[str]:
        """Paths that are not to be built beside others, or not before there is memory to spare."""
        return [path for path, burden in self._burdens.items() if burden.alone and path != alone]

    # After a build

    def failed(self, path: str, attempt: Attempt, reason: str, *, is_machines: bool) -> str | None:
        """A build ran out of memory; returns the detail of the finding if its file is to blame.

        `is_machines`: memory was short; otherwise the worker took more than its budget.
        """
        if is_blamed(attempt, self._hard):
            self._burdens.pop(path, None)
            spare = format_bytes(attempt.headroom_bytes)
            return f"{reason}; built alone, in batches of {READ_ROWS[-1]} rows, with {spare} to spare"
        if is_machines:
            self._go_down(attempt, reason)
        self._burdens[path] = heavier(self._burden(path), attempt)
        if self._burden(path).alone and path not in self._waiting:
            self._waiting.add(path)
            words = f"it is built alone, once more than {format_bytes(self._hard)} are to spare"
            self._events.record("source_waits_for_memory", level="warning", path=path, reason=words)
        return None

    def recycled_in_vain(self, path: str, attempt: Attempt) -> None:
        """A build outgrew its soft budget before it could commit anything: smaller batches for its file."""
        if attempt.rows < len(READ_ROWS) - 1:
            self._burdens[path] = heavier(self._burden(path), attempt)

    def succeeded(self, path: str) -> None:
        """A build came to its end."""
        self._burdens.pop(path, None)
        self._waiting.discard(path)
        before = self.ladder
        self.ladder = before.succeeded(time.monotonic())
        if self.ladder.step != before.step:
            self._events.record("memory_ladder_up", reason="builds end well again", **self.shown())

    def _go_down(self, attempt: Attempt, reason: str) -> None:
        before = self.ladder
        self.ladder = before.down(attempt.step, self._most, time.monotonic())
        if self.ladder.paused and not before.paused:
            need = format_bytes(ROOMY * self._soft)
            self.why = f"one builder in the smallest batches ran out of memory; goes on with {need} to spare"
            self._events.record("memory_paused", level="error", reason=f"{reason}; {self.why}")
        elif self.ladder.step != before.step:
            self._events.record("memory_ladder_down", level="warning", reason=reason, **self.shown())

    # Looking

    def look_now(self) -> MemoryFacts:
        """Read the counters, for evidence."""
        self.facts = self._watch.look()
        return self.facts

    def look(self) -> None:
        """Every second: how much there is to spare, and whether a pause is over."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        before = self.ladder
        self.ladder = before.rested(self.look_now().headroom_bytes, ROOMY * self._soft, now)
        if before.paused and not self.ladder.paused:
            self.why = ""
            self._events.record("memory_resumed", **self.shown())
        elif self.ladder.paused and self._once and now - self.ladder.since > ONCE_WAITS_S:
            raise Transient(f"{self.why}; free some memory, then start again")

    def shown(self) -> dict[str, Any]:
        """How it is, for status and events."""
        return {
            "step": self.ladder.step,
            "read_rows": READ_ROWS[self.ladder.rows],
            "builders": self.ladder.builders(self._most),
            "headroom_bytes": self.facts.headroom_bytes,
        }

    def _burden(self, path: str) -> Burden:
        return self._burdens.get(path, Burden())
