"""How many builders and copies at once, decided from what is measured; pure.

A number changes by one, after VOTES measures in a row that say so, then rests. One whose step up is taken
back soon rests twice as long before the next, so that it settles instead of swinging with the load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from stoker.observe.pressure import Pressure

VOTES = 3
REST_S = 20.0  # after a change
LONGEST_REST_S = 3600.0  # before a step up, once steps up were taken back again and again
FORGET_S = 4 * LONGEST_REST_S  # without a change
SOON_S = 600.0  # a step down within this time of a step up takes it back
AHEAD_S, SHORT_S = 4 * 3600.0, 3600.0  # of training that what is built is enough for

IDLE_CPUS = 0.75  # so much of a CPU must be idle for one more builder
TIGHT_CPUS = 0.25  # with less, everybody waits for a CPU
CPU_HIGH, IO_HIGH, MEMORY_HIGH = 0.5, 0.6, 0.2  # shares of the time in which somebody waits
IO_LOW, MEMORY_LOW = 0.3, 0.05

Thing = Literal["builders", "copies"]


@dataclass(frozen=True)
class Measure:
    """One look. `queued` files are staged and wait for a builder, `waiting` ones could be staged; `building`
    and `copying` go on. `ahead_s` is how long a run can train on what is built, None where none does."""

    pressure: Pressure
    headroom_bytes: int
    queued: int
    waiting: int
    building: int
    copying: int
    ahead_s: float | None = None


@dataclass(frozen=True)
class Bounds:
    """The most there may be of each, and the memory that one more builder takes."""

    builders: int
    copies: int
    builder_bytes: int


@dataclass(frozen=True)
class Lane:
    """One number, and what it takes to change it; times are monotonic seconds."""

    wanted: int
    leaning: int = 0
    votes: int = 0
    rest_until: float = -math.inf  # neither way before
    rise_after: float = -math.inf  # not up before, unless a trainer is about to wait
    rose_at: float = -math.inf  # the last step up that was not taken back
    changed_at: float = -math.inf
    rise_rest_s: float = REST_S


@dataclass(frozen=True)
class Lanes:
    """Both numbers."""

    builders: Lane
    copies: Lane


@dataclass(frozen=True)
class Change:
    """A number that changed, and why."""

    thing: Thing
    before: int
    after: int
    reason: str


def begin(bounds: Bounds, headroom_bytes: int, copies: int) -> Lanes:
    """At the start: a builder a CPU, as far as memory goes, so that nobody waits for a number to rise."""
    builders = max(1, min(bounds.builders, headroom_bytes // bounds.builder_bytes))
    return Lanes(Lane(builders), Lane(min(copies, bounds.copies)))


def decide(lanes: Lanes, measure: Measure, bounds: Bounds, now: float) -> tuple[Lanes, tuple[Change, ...]]:
    """The numbers after another measure, and which of them changed."""
    for_builders = _lean_of_builders(measure, bounds, lanes.builders.wanted)
    for_copies = _lean_of_copies(measure, bounds, lanes.copies.wanted)
    hungry = measure.ahead_s is not None and measure.ahead_s < SHORT_S
    builders, first = _step("builders", lanes.builders, for_builders, now, at_once=hungry)
    copies, second = _step("copies", lanes.copies, for_copies, now, at_once=hungry)
    return Lanes(builders, copies), tuple(change for change in (first, second) if change is not None)


def _lean_of_builders(measure: Measure, bounds: Bounds, wanted: int) -> tuple[int, str]:
    """Which way the measure says the number of builders should go (-1, 0, 1), and why."""
    pressure, ahead_s = measure.pressure, measure.ahead_s
    at_work = measure.building >= wanted
    if at_work and _over(pressure.memory_some, MEMORY_HIGH):
        return -1 if wanted > 1 else 0, f"{pressure.memory_some:.0%} of the time something waits for memory"
    if at_work and measure.headroom_bytes < bounds.builder_bytes // 4:
        return -1 if wanted > 1 else 0, f"{measure.headroom_bytes >> 20} MiB of memory are to spare"
    tight = pressure.idle_cpus < TIGHT_CPUS and _over(pressure.cpu_some, CPU_HIGH)
    if at_work and tight and ahead_s is not None and ahead_s > AHEAD_S:
        return -1 if wanted > 1 else 0, (
            f"CPUs are short, and what is built is enough for {ahead_s / 3600:.1f} h of training"
        )
    if wanted >= bounds.builders or not at_work or not measure.queued:
        return 0, ""
    if measure.headroom_bytes < bounds.builder_bytes * 3 // 2 or _over(pressure.memory_some, MEMORY_LOW):
        return 0, ""
    if ahead_s is not None and ahead_s < SHORT_S:
        return 1, f"what is built is enough for {ahead_s / 60:.0f} min of training"
    if pressure.idle_cpus >= IDLE_CPUS and not _over(pressure.cpu_some, CPU_HIGH):
        return 1, f"{measure.queued} files wait for a builder and {pressure.idle_cpus:.1f} CPUs are idle"
    return 0, ""


def _lean_of_copies(measure: Measure, bounds: Bounds, wanted: int) -> tuple[int, str]:
    """The same for copies: more where builders wait for files, fewer where the disks have too much to do."""
    pressure = measure.pressure
    if measure.copying < wanted:
        return 0, ""
    if measure.queued and _over(pressure.io_some, IO_HIGH):
        return -1 if wanted > 1 else 0, (
            f"{pressure.io_some:.0%} of the time something waits for a disk; {measure.queued} files are ahead"
        )
    starving = not measure.queued and measure.waiting > 0
    if starving and wanted < bounds.copies and not _over(pressure.io_some, IO_LOW):
        return 1, f"no staged file waits for a builder, {measure.waiting} are to be brought"
    return 0, ""


def _step(
    thing: Thing, lane: Lane, lean: tuple[int, str], now: float, *, at_once: bool
) -> tuple[Lane, Change | None]:
    way, reason = lean
    votes = lane.votes + 1 if way == lane.leaning else 1
    lane = replace(lane, leaning=way, votes=votes if way else 0)
    if now - lane.changed_at > FORGET_S:
        lane = replace(lane, rise_rest_s=REST_S)  # what took the steps back is over
    early = now < lane.rest_until or (way > 0 and now < lane.rise_after and not at_once)
    if not way or votes < VOTES or early:
        return lane, None
    change = Change(thing, lane.wanted, lane.wanted + way, reason)
    lane = replace(lane, wanted=change.after, votes=0, rest_until=now + REST_S, changed_at=now)
    if way > 0:
        return replace(lane, rose_at=now, rise_after=now + lane.rise_rest_s), change
    rest_s = lane.rise_rest_s
    if now - lane.rose_at < SOON_S:
        rest_s = min(LONGEST_REST_S, rest_s * 2)
    return replace(lane, rise_rest_s=rest_s, rise_after=now + rest_s, rose_at=-math.inf), change


def _over(share: float | None, most: float) -> bool:
    """Whether a share is told and more than that."""
    return share is not None and share > most
