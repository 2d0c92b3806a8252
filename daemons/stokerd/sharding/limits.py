"""How much work runs at once, and why work waits: memory, CPUs, a full disk, the source folder."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from stoker.config.units import format_bytes
from stoker.corpus.schedule.outcome import ALONE, READ_ROWS, SMALLEST, Attempt, Ladder
from stoker.corpus.schedule.parallelism import SHORT_S, Measure, Number, builders_way, copies_way
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.kit.loop import Retries
from stoker.kit.workers.pool import Job
from stoker.observe.ledger import LOOK_S, Place, has_room
from stoker.observe.machine import MemoryFacts, MemoryWatch, PressureGauge
from stoker.plan.positions import linear
from stoker.store.errors import DataError, StorageError, Transient, UnavailableError
from stokerd.sharding.effects import Effect, event

if TYPE_CHECKING:
    from stokerd.sharding.state import State

WRITERS = ("stage", "build", "hydrate", "sync")
SOURCE = "/source"  # the subject that failures of the source folder are counted under
SOURCE_RETRY_S = 30.0  # upper limit of the wait: each try costs the staging of one file
ONCE_WAITS_S = 20.0  # with --once: the longest wait, for any reason
ROOMY = 2  # times the soft budget: the memory that one builder needs to resume after a pause
LOOK_EVERY_S = 6.0  # between two measures of CPUs and disks
FIRST_COPIES, MOST_COPIES = 2, 8
PLACES: tuple[Place, ...] = ("hot", "warm", "state")


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
        self.facts = self._watch.look()
        self.ladder = Ladder()
        self.why = ""

    def look_now(self) -> MemoryFacts:
        self.facts = self._watch.look()
        return self.facts

    # Before a build

    def attempt(self, path: str, *, others: bool) -> Attempt:
        """Returns the conditions under which a build of the path's file begins now."""
        need = self.needs.get(path, 0)
        rows = min(SMALLEST, max(self.ladder.rows, need))
        return Attempt(rows, need == ALONE and not others, self.look_now().headroom_bytes, self.ladder.step)

    def plan(self, state: State) -> tuple[Limits, str | None, list[str]]:
        """Returns the limits with as many builders as memory allows, the path to build alone now, and
        the other paths that wait to be built alone."""
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

    def look(self) -> None:
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


@dataclass
class Pause:
    """A reason to wait, with the monotonic times of its first and its last failure."""

    reason: str
    since: float
    failed_at: float


class Pauses:
    """All reasons to wait; with --once a reason that lasts raises."""

    def __init__(self, context: DaemonContext) -> None:
        self._context, self._events = context, context.events
        self.memory = Memory(context)
        self.retries = Retries()
        self._all: dict[Place | Literal["source"], Pause] = {}

    def _begin(self, what: Place | Literal["source"], reason: str) -> bool:
        """Starts or extends a pause; returns whether it is new."""
        now, known = time.monotonic(), self._all.get(what)
        self._all[what] = Pause(reason, now if known is None else known.since, now)
        return known is None

    # Recording

    def disk_full(self, state: State, job: Job[Any], reason: str) -> None:
        """Records that a worker found its disk full."""
        place = state.activities[job.kind].writes_to or "hot"
        if self._begin(place, f"{job.name}: {reason}"):
            reason = f"{reason}; free some space: it continues by itself"
            about: dict[str, Any] = {"place": place, "activity": job.kind, "path": job.subject}
            self._events.record("disk_full", **about, reason=reason)

    def disk_works(self, place: Place | None) -> None:
        """Ends a disk's pause after a durable write there, unless the write may predate the failure."""
        known = None if place is None else self._all.get(place)
        if place is not None and known is not None and time.monotonic() - known.failed_at >= LOOK_S:
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

    def look(self, state: State) -> None:
        """Reads memory; with --once raises the error of a pause that lasted too long."""
        self.memory.look()
        if not self._context.once:
            return
        if self._context.reserve.spent:
            raise StorageError(f"{self._context.layout.state} is full; free some space, then start again")
        enough = time.monotonic() - ONCE_WAITS_S
        for place in PLACES:
            if self._is_full(state, place) and self._all[place].since < enough:
                reason = self._all[place].reason
                raise StorageError(f"{place} is full: {reason}; free some space, then start again")
        if (source := self._all.get("source")) is not None and source.since < enough:
            raise UnavailableError(source.reason)
        if self.memory.ladder.paused and self.memory.ladder.since < enough:
            raise Transient(f"{self.memory.why}; free some memory, then start again")

    # Reading

    def until(self, kind: str, state: State) -> float:
        """Returns when jobs of a kind may begin, monotonic seconds; inf while a condition blocks them."""
        place = state.activities[kind].writes_to
        is_full = place is not None and self._is_full(state, place)
        if is_full or (kind in WRITERS and self._context.reserve.spent):
            return math.inf
        until = self.retries.not_before.get(f"/{kind}", 0.0)
        if kind != "stage":
            return until
        return math.inf if _is_stuck(state) else max(until, self.retries.not_before.get(SOURCE, 0.0))

    def reasons(self, state: State) -> dict[str, str]:
        """Returns why work waits, by cause."""
        found = {f"disk_{place}": self._all[place].reason for place in PLACES if self._is_full(state, place)}
        if self._context.reserve.spent:
            found["disk_state"] = f"{self._context.layout.state} is full; free some space"
        if self.memory.ladder.paused:
            found["memory"] = self.memory.why
        return found

    def source_trouble(self, state: State) -> str:
        """Returns why staging waits; empty when the source answers."""
        if _is_stuck(state):
            return "staging waits for the source or hot: a worker hangs in the kernel"
        pause = self._all.get("source")
        return "" if pause is None else f"staging waits: {pause.reason}"

    def _is_full(self, state: State, place: Place) -> bool:
        """Whether the last measure shows no room; retries are at least LOOK_S apart, in any case."""
        if (pause := self._all.get(place)) is None:
            return False
        is_small = any(disk.place == place and not has_room(disk.measure) for disk in state.disks)
        return is_small or time.monotonic() - pause.failed_at < LOOK_S


def _is_stuck(state: State) -> bool:
    return any(job.abandoned and job.kind == "stage" for job in state.pool.jobs)


class Parallelism:
    """The two numbers; `auto` in shard.workers and stage.copies lets each vary, a number fixes it."""

    def __init__(self, context: DaemonContext, state: State, gauge: PressureGauge | None = None) -> None:
        pipeline = context.pipeline
        self._gauge = gauge or PressureGauge()
        self._builder_bytes = pipeline.shard.memory.soft
        cpus = max(1, math.ceil(self._gauge.cpus))
        fitting = state.pauses.memory.facts.headroom_bytes // self._builder_bytes
        # One builder per CPU, if memory allows: throughput need not wait for the number to climb.
        first = {"builders": max(1, min(cpus, fitting)), "copies": FIRST_COPIES}
        asked = {"builders": pipeline.shard.workers, "copies": pipeline.stage.copies}
        self._most = {"builders": cpus, "copies": MOST_COPIES}
        self._fixed = {what: number for what, number in asked.items() if number != "auto"}
        self._numbers = {what: Number(self._fixed.get(what, number)) for what, number in first.items()}
        self._was_idle = True
        self.due = 0.0  # when to measure next without a wake-up, monotonic seconds
        self._set_limits(state)

    def look(self, state: State) -> Iterator[Effect]:
        """Measures when due and adjusts the numbers; an idle loop measures nothing."""
        now, building, copying = time.monotonic(), len(state.doing("build")), len(state.doing("stage"))
        if now < self.due < math.inf:
            return
        was_idle, self._was_idle = self._was_idle, not building and not copying
        self.due = math.inf if self._was_idle else now + LOOK_EVERY_S
        if self._was_idle or (pressure := self._gauge.look()) is None or was_idle:
            return
        measure = Measure(
            pressure=pressure,
            headroom_bytes=state.pauses.memory.facts.headroom_bytes,
            queued=state.sources.count("staged"),
            waiting=state.sources.count("seen"),
            building=building,
            copying=copying,
            ahead_s=_ahead_s(state),
        )
        ways = {
            "builders": builders_way(measure, self._builder_bytes, self._numbers["builders"].wanted),
            "copies": copies_way(measure, self._numbers["copies"].wanted),
        }
        for what, (way, reason) in ways.items():
            before, at_once = self._numbers[what], measure.ahead_s < SHORT_S
            after = before.step(way, self._most[what], now, at_once=at_once)
            if after != before and what not in self._fixed:
                self._numbers[what] = after
                about: dict[str, Any] = {"from": before.wanted, "to": after.wanted}
                yield event("parallelism_changed", what=what, reason=reason, **about)
        self._set_limits(state)

    def _set_limits(self, state: State) -> None:
        builders, copies = (self._numbers[what].wanted for what in ("builders", "copies"))
        state.limits = replace(state.limits, builders=builders, stagers=copies)


def _ahead_s(state: State) -> float:
    """Returns the least seconds of training that built sets give any run; inf without a known rate.

    Counts from the run's low-water mark, which lags behind the trainer by less than
    AHEAD_S of schedule.parallelism.
    """
    built = state.sources.sums.tokens["train"] / state.pipeline.train.seq_len
    ahead = []
    for run in state.placement.holdings:
        if not run.finished and run.windows_per_s:
            with contextlib.suppress(DataError):  # the supervisor is just repairing the plan
                ahead.append((built - linear(run.plan, run.low_water)) / run.windows_per_s)
    return min(ahead, default=math.inf)
