"""How many builders and copies may be at work: two numbers that follow measures of CPUs, memory and disks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker.corpus.schedule.parallelism import SHORT_S, Measure, Number, builders_way, copies_way
from stoker.kit.daemon import DaemonContext
from stoker.observe.machine import PressureGauge
from stoker.plan.positions import Accounts
from stoker.plan.residency import reaching
from stoker.store.errors import DataError
from stokerd.sharding.effects import Effect, event
from stokerd.sharding.state import State

LOOK_EVERY_S = 6.0  # between two measures of CPUs and disks
FIRST_COPIES, MOST_COPIES = 2, 8


class Parallelism:
    """The two numbers; `auto` in shard.workers and stage.copies lets each vary, a number fixes it."""

    def __init__(self, context: DaemonContext, state: State, gauge: PressureGauge | None = None) -> None:
        pipeline = context.pipeline
        self._gauge = gauge or PressureGauge()
        self._builder_bytes = pipeline.shard.memory.soft
        cpus = max(1, math.ceil(self._gauge.cpus))
        fitting = state.memory.facts.headroom_bytes // self._builder_bytes
        # One builder per CPU, if memory allows: throughput need not wait for the number to climb.
        first = {"builders": max(1, min(cpus, fitting)), "copies": FIRST_COPIES}
        asked = {"builders": pipeline.shard.workers, "copies": pipeline.stage.copies}
        self._most = {"builders": cpus, "copies": MOST_COPIES}
        self._fixed = {what: number for what, number in asked.items() if number != "auto"}
        self._numbers = {what: Number(self._fixed.get(what, number)) for what, number in first.items()}
        self._was_idle = True
        self.due = 0.0  # when to measure next without a wake-up, monotonic seconds
        self._set_limits(state)

    def refresh(self, state: State) -> Iterator[Effect]:
        """Measures when due and adjusts the numbers; an idle loop measures nothing."""
        now, kinds = time.monotonic(), list(state.pool.busy.values())
        if now < self.due < math.inf:
            return
        building, copying = kinds.count("build"), kinds.count("stage")
        was_idle, self._was_idle = self._was_idle, not building and not copying
        self.due = math.inf if self._was_idle else now + LOOK_EVERY_S
        if self._was_idle or (pressure := self._gauge.sample()) is None or was_idle:
            return
        sources = [dataset.sources for dataset in state.datasets.values()]
        measure = Measure(
            pressure=pressure,
            headroom_bytes=state.memory.facts.headroom_bytes,
            queued=sum(each.count("staged") for each in sources),
            waiting=sum(each.count("seen") for each in sources),
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
        for dataset in state.datasets.values():
            dataset.limits = replace(dataset.limits, builders=builders, stagers=copies)


def _ahead_s(state: State) -> float:
    """Returns the least seconds of training that built sets give any run; inf without a known rate.

    Counts from the run's low-water mark, which lags behind the trainer by less than
    AHEAD_S of schedule.parallelism.
    """
    tokens = sum(dataset.sources.sums.tokens["train"] for dataset in state.datasets.values())
    ahead = []
    for run in state.runs.holdings:
        if not run.finished and run.windows_per_s:
            with contextlib.suppress(DataError):  # the supervisor is just repairing the plan
                left = tokens - Accounts(run.plan).tokens(run.low_water)
                lengths = (one.seq_len for one in reaching(run.plan, run.low_water))
                length = next(lengths, state.context.pipeline.train.seq_len)
                ahead.append(left / length / run.windows_per_s)
    return min(ahead, default=math.inf)
