"""Memory in the stage-shard loop: the ladder of the machine, the burdens of single files, the pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from stoker.config.schema import BuilderMemory
from stoker.config.units import format_bytes
from stoker.corpus.schedule.memory_steps import READ_ROWS, Attempt, Burden, Ladder, heavier, is_blamed
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.observe.headroom import MemoryFacts, MemoryWatch
from stoker.store.errors import Transient

LOOK_EVERY_S = 1.0
ROOMY = 2  # times the soft budget: what one builder needs to go on after a pause
ONCE_WAITS_S = 120.0  # with --once, for memory to come back
BUILDS = ("build",)


class MemoryDesk:
    """Holds what is known of memory since the daemon started; a restart begins at the top again."""

    def __init__(
        self,
        context: DaemonContext,
        crew: WorkerPool[Any],
        budget: BuilderMemory,
        watch: MemoryWatch | None = None,
    ) -> None:
        self._context, self._crew, self._events = context, crew, context.events
        self._soft, self._hard = budget.soft, budget.hard
        self._watch = watch or MemoryWatch()
        self._most = 1
        self._burdens: dict[str, Burden] = {}
        self._waiting_told: set[str] = set()
        self._look_at = 0.0
        self.facts = self._watch.look()
        self.ladder = Ladder()
        self.why = ""  # what the pause is about
        self._step = context.metrics.gauge(
            "memory_ladder_step", "Rungs below the top: smaller batches first, then fewer builders."
        )
        self._headroom = context.metrics.gauge(
            "memory_headroom_bytes", "What may be taken before the kernel kills, by machine and cgroups."
        )

    # Before a build

    def begin(self, job: Job[Any]) -> None:
        """Note under which conditions a worker begins."""
        job.facts["memory"] = self.look_now()
        if job.kind in BUILDS:
            others = [one for one in self._crew.jobs if one is not job and one.kind in BUILDS]
            alone = self._burden(job.subject).alone and not others
            rows = max(self.ladder.rows, self._burden(job.subject).rows)
            job.facts["attempt"] = Attempt(rows, alone, self.facts.headroom_bytes, self.ladder.step)

    def read_rows(self, path: str) -> int:
        """In batches of how many rows the path's file is read now."""
        return READ_ROWS[max(self.ladder.rows, self._burden(path).rows)]

    def limited(self, limits: Limits, alone: str | None) -> Limits:
        """The limits with as many builders as memory allows."""
        self._most = max(1, limits.builders)
        builders = self.ladder.builders(self._most)
        others = any(job.kind == "build" and job.subject != alone for job in self._crew.jobs)
        if alone is not None:
            builders = min(builders, 0 if others else 1)
        return replace(limits, builders=builders)

    def next_alone(self, is_ready: Callable[[str], bool]) -> str | None:
        """The path whose turn it is to be built with nothing beside it, or that is being built so."""
        for path, burden in self._burdens.items():
            if burden.alone and path in self._crew and self._crew[path].kind == "build":
                return path
        if self.facts.headroom_bytes <= self._hard:
            return None
        ready = (path for path, burden in self._burdens.items() if burden.alone and is_ready(path))
        return next(ready, None)

    def held_back(self, alone: str | None) -> Collection[str]:
        """Paths that are not to be built beside others, or not before there is memory to spare."""
        return [path for path, burden in self._burdens.items() if burden.alone and path != alone]

    # After a build

    def failed(self, job: Job[Any], kind: str, reason: str) -> Mapping[str, Any] | None:
        """A worker ran `out_of_memory`, or was `over_memory`; returns the finding if its file is to blame."""
        attempt: Attempt | None = job.facts.get("attempt")
        if attempt is None:  # not a builder's
            return None
        if job.kind == "build" and is_blamed(attempt, self._hard):
            self._burdens.pop(job.subject, None)
            spare = format_bytes(attempt.headroom_bytes)
            return {
                "reason": "out_of_memory",
                "row_group": job.facts.get("row_group"),
                "column": None,
                "detail": f"{reason}; built alone, in batches of {READ_ROWS[-1]} rows, with {spare} to spare",
            }
        if kind == "out_of_memory":
            self._go_down(attempt, reason)
        if job.kind == "build":
            self._burdens[job.subject] = heavier(self._burden(job.subject), attempt)
            self._tell_waiting(job.subject)
        return None

    def recycled_in_vain(self, job: Job[Any]) -> None:
        """A worker outgrew its soft budget before it could commit anything: smaller batches for its file."""
        attempt: Attempt | None = job.facts.get("attempt")
        if attempt is not None and attempt.rows < len(READ_ROWS) - 1:
            self._burdens[job.subject] = heavier(self._burden(job.subject), attempt)

    def succeeded(self, path: str) -> None:
        """A build came to its end."""
        self._burdens.pop(path, None)
        self._waiting_told.discard(path)
        self._climb()

    def _go_down(self, attempt: Attempt, reason: str) -> None:
        before, now = self.ladder, time.monotonic()
        self.ladder = before.down(attempt.step, self._most, now)
        if self.ladder.paused and not before.paused:
            need = format_bytes(ROOMY * self._soft)
            self.why = f"one builder in the smallest batches ran out of memory; goes on with {need} to spare"
            self._events.record("memory_paused", level="error", reason=f"{reason}; {self.why}")
        elif self.ladder.step != before.step:
            self._events.record("memory_ladder_down", level="warning", reason=reason, **self.shown())

    def _climb(self) -> None:
        before = self.ladder
        self.ladder = before.succeeded(time.monotonic())
        if self.ladder.step != before.step:
            self._events.record("memory_ladder_up", reason="builds end well again", **self.shown())

    def _tell_waiting(self, path: str) -> None:
        if self._burden(path).alone and path not in self._waiting_told:
            self._waiting_told.add(path)
            self._events.record(
                "source_waits_for_memory",
                level="warning",
                path=path,
                reason=f"it is built alone, once more than {format_bytes(self._hard)} are to spare",
            )

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
        self.look_now()
        before = self.ladder
        self.ladder = before.rested(self.facts.headroom_bytes, ROOMY * self._soft, now)
        if before.paused and not self.ladder.paused:
            self.why = ""
            self._events.record("memory_resumed", **self.shown())
        elif self.ladder.paused and self._context.once and now - self.ladder.since > ONCE_WAITS_S:
            raise Transient(f"{self.why}; free some memory, then start again")
        self._step.set(self.ladder.step)
        self._headroom.set(self.facts.headroom_bytes)

    def shown(self) -> dict[str, Any]:
        """How it stands, for status and events."""
        return {
            "step": self.ladder.step,
            "read_rows": READ_ROWS[self.ladder.rows],
            "builders": self.ladder.builders(self._most),
            "headroom_bytes": self.facts.headroom_bytes,
        }

    def _burden(self, path: str) -> Burden:
        return self._burdens.get(path, Burden())
