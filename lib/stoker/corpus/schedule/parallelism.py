"""How many builders and copies run at once, decided from measurements; pure.

One measurement covers some seconds, enough to change a number by one; then the number rests. After a step
down it takes long before a step up, so that numbers settle and do not swing with the load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.observe.machine import Pressure

REST_S = 20.0  # after a change
SETTLE_S = 3600.0  # after a step down, before a step up, unless a trainer is about to wait
AHEAD_S, SHORT_S = 4 * 3600.0, 3600.0  # seconds of training that the built sets last: plenty; too few

IDLE_CPUS = 0.75  # CPUs that must be idle for one more builder
TIGHT_CPUS = 0.25  # with fewer idle CPUs every process waits for a CPU
CPU_HIGH, IO_HIGH, MEMORY_HIGH = 0.5, 0.6, 0.2  # shares of the time in which some process waits
IO_LOW, MEMORY_LOW = 0.3, 0.05


@dataclass(frozen=True)
class Measure:
    """One measurement of the load and of the work at each stage."""

    pressure: Pressure
    headroom_bytes: int
    queued: int  # staged files that wait for a builder
    waiting: int  # files that could be staged
    building: int
    copying: int
    ahead_s: float = math.inf  # how long a run can train on the built sets; inf without a run


@dataclass(frozen=True)
class Number:
    """How many there may be, and when that may change; times are monotonic seconds."""

    wanted: int
    rest_until: float = -math.inf
    rise_after: float = -math.inf

    def step(self, way: int, most: int, now: float, *, at_once: bool) -> Number:
        """Returns the number after a measurement that demands a step this way, at most `most`."""
        after = max(1, min(most, self.wanted + way))
        if after == self.wanted or now < self.rest_until:
            return self
        if after > self.wanted:
            is_early = now < self.rise_after and not at_once
            return self if is_early else Number(after, now + REST_S, self.rise_after)
        return Number(after, now + REST_S, now + SETTLE_S)


def builders_way(measure: Measure, builder_bytes: int, wanted: int) -> tuple[int, str]:
    """Returns which way the number of builders should go (-1, 0, 1), and why.

    One more builder takes `builder_bytes` of memory.
    """
    pressure, ahead_s, spare = measure.pressure, measure.ahead_s, measure.headroom_bytes
    cpu, memory = pressure.cpu_some or 0.0, pressure.memory_some or 0.0
    if measure.building < wanted:
        return 0, ""
    if memory > MEMORY_HIGH:
        return -1, f"{memory:.0%} of the time something waits for memory"
    if spare < builder_bytes // 4:
        return -1, f"{spare >> 20} MiB of memory are to spare"
    if pressure.idle_cpus < TIGHT_CPUS and cpu > CPU_HIGH and AHEAD_S < ahead_s < math.inf:
        return -1, f"CPUs are short, and what is built is enough for {ahead_s / 3600:.1f} h of training"
    if not measure.queued or spare < builder_bytes * 3 // 2 or memory > MEMORY_LOW:
        return 0, ""
    if ahead_s < SHORT_S:
        return 1, f"what is built is enough for {ahead_s / 60:.0f} min of training"
    if pressure.idle_cpus >= IDLE_CPUS and cpu <= CPU_HIGH:
        return 1, f"{measure.queued} files wait for a builder and {pressure.idle_cpus:.1f} CPUs are idle"
    return 0, ""


def copies_way(measure: Measure, wanted: int) -> tuple[int, str]:
    """Returns the same for copies: more where builders wait for files, fewer where disks are overloaded."""
    waits, queued = measure.pressure.io_some or 0.0, measure.queued
    if measure.copying < wanted:
        return 0, ""
    if queued and waits > IO_HIGH:
        return -1, f"{waits:.0%} of the time something waits for a disk; {queued} files are ahead"
    if not queued and measure.waiting and waits <= IO_LOW:
        return 1, f"no staged file waits for a builder, {measure.waiting} are to be staged"
    return 0, ""
