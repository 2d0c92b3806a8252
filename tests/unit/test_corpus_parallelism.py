"""How many builders and copies: what each measure leans to, and that the numbers settle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.schedule.parallelism import (
    AHEAD_S,
    REST_S,
    VOTES,
    Bounds,
    Change,
    Lane,
    Lanes,
    Measure,
    begin,
    decide,
)
from stoker.observe.pressure import Pressure, PressureGauge

MIB = 1 << 20
BOUNDS = Bounds(builders=8, copies=8, builder_bytes=320 * MIB)
LOOK_S = 2.0
CALM = Pressure(cpus=8, idle_cpus=4.0, cpu_some=0.0, io_some=0.0, memory_some=0.0)
BUSY = Measure(CALM, headroom_bytes=1 << 34, queued=3, waiting=5, building=4, copying=2)


def lanes(builders: int = 4, copies: int = 2) -> Lanes:
    return Lanes(Lane(builders), Lane(copies))


def watch(
    state: Lanes, looks: int, measure: Measure, *, since: float = 1000.0, bounds: Bounds = BOUNDS
) -> tuple[Lanes, list[Change]]:
    """So many looks at the same thing, with as much at work as is wanted."""
    told: list[Change] = []
    for look in range(looks):
        now = replace(
            measure,
            building=min(measure.building, state.builders.wanted),
            copying=min(measure.copying, state.copies.wanted),
        )
        state, changes = decide(state, now, bounds, since + look * LOOK_S)
        told += changes
    return state, told


def under(**changes: Any) -> Measure:
    figures = {name: changes.pop(name) for name in tuple(changes) if name in Pressure.__annotations__}
    return replace(BUSY, pressure=replace(CALM, **figures), **changes)


@pytest.mark.parametrize(
    ("measure", "builders", "copies"),
    [
        (under(), 5, 2),  # files wait and CPUs are idle
        (under(cpu_some=None, io_some=None, memory_some=None), 5, 2),  # a kernel that tells no pressure
        (under(idle_cpus=0.5), 4, 2),
        (under(cpu_some=0.9), 4, 2),
        (under(cpu_some=0.9, idle_cpus=0.1), 4, 2),  # busy with our own work: that is what it is for
        (under(queued=0, waiting=0), 4, 2),
        (under(building=3), 4, 2),  # what is wanted already is not at work yet
        (under(headroom_bytes=400 * MIB), 4, 2),
        (under(headroom_bytes=50 * MIB), 3, 2),
        (under(memory_some=0.3), 3, 2),
        (under(memory_some=0.1), 4, 2),
        (under(cpu_some=0.9, idle_cpus=0.1, ahead_s=AHEAD_S + 1), 3, 2),  # leave the trainer its CPUs
        (under(cpu_some=0.9, idle_cpus=0.1, ahead_s=AHEAD_S - 1), 4, 2),
        (under(cpu_some=0.9, idle_cpus=0.1, ahead_s=60.0), 5, 2),  # the trainer is about to wait for us
        (under(queued=0), 4, 3),  # builders wait for files
        (under(queued=0, copying=1), 4, 2),
        (under(queued=0, io_some=0.5), 4, 2),
        (under(idle_cpus=0.0, io_some=0.9), 4, 1),  # the disks have too much to do, and enough is ahead
    ],
)
def test_what_is_measured_says_which_way_the_numbers_go(measure: Measure, builders: int, copies: int) -> None:
    state, told = watch(lanes(), VOTES, measure)
    assert (state.builders.wanted, state.copies.wanted) == (builders, copies)
    assert all(change.reason and abs(change.after - change.before) == 1 for change in told)


def test_one_odd_measure_changes_nothing_and_neither_do_two() -> None:
    state, told = watch(lanes(), VOTES - 1, under())
    state, more = watch(state, 1, under(idle_cpus=0.0))
    state, last = watch(state, VOTES - 1, under())
    assert told + more + last == []
    assert state.builders.wanted == 4


def test_no_number_leaves_its_bounds() -> None:
    low, told = watch(lanes(1, 1), 50, under(headroom_bytes=0, io_some=0.9))
    assert (low.builders.wanted, low.copies.wanted, told) == (1, 1, [])
    high, _ = watch(lanes(8, 8), 50, under(building=8, copying=8))
    assert high.builders.wanted == 8
    assert watch(lanes(8, 8), 50, under(building=8, copying=8, queued=0))[0].copies.wanted == 8


def test_a_start_takes_every_cpu_that_memory_allows() -> None:
    assert begin(BOUNDS, 1 << 40, 2) == lanes(8, 2)
    assert begin(BOUNDS, 1000 * MIB, 2).builders.wanted == 3
    assert begin(BOUNDS, 0, 2).builders.wanted == 1


def test_a_change_rests_before_the_next_and_what_was_taken_back_rests_longer_each_time() -> None:
    state, _ = watch(lanes(), VOTES, under(), since=0.0)
    assert watch(state, int(REST_S / LOOK_S) - 2, under(building=5), since=8.0)[1] == []
    rises: list[float] = []
    now, state = 0.0, lanes()
    while now < 3600:  # memory is short whenever there are five
        five = state.builders.wanted == 5
        measure = under(building=5, headroom_bytes=50 * MIB if five else 1 << 34)
        state, told = watch(state, 1, measure, since=now)
        rises += [now for change in told if change.after == 5]
        now += LOOK_S
    gaps = [later - earlier for earlier, later in itertools.pairwise(rises)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 10 * gaps[0] / 2
    assert len(rises) < 14


class Machine:
    """A machine with so many CPUs: a trainer that takes some of them, builders one each."""

    def __init__(self, cpus: int, trainer_cpus: Callable[[float], float], rate: float = 0.4) -> None:
        self.cpus, self.trainer_cpus, self.rate = cpus, trainer_cpus, rate
        self.ahead_s: float | None = 0.0
        self.bounds = Bounds(cpus, 8, 320 * MIB)

    def run(self, hours: float) -> tuple[Lanes, list[tuple[float, Change]]]:
        state, told, now = begin(self.bounds, 1 << 40, 2), [], 0.0
        while now < hours * 3600:
            trainer = self.trainer_cpus(now)
            wish = trainer + state.builders.wanted
            some = min(1.0, max(0.0, wish / self.cpus - 0.8))
            assert self.ahead_s is not None
            # A builder makes data for `rate` seconds of training in a second; the trainer uses one up.
            self.ahead_s = max(0.0, self.ahead_s + LOOK_S * (state.builders.wanted * self.rate - 1))
            pressure = Pressure(self.cpus, max(0.0, self.cpus - wish), some, 0.0, 0.0)
            measure = Measure(
                pressure, 1 << 40, 8, 100, state.builders.wanted, state.copies.wanted, self.ahead_s
            )
            state, changes = decide(state, measure, self.bounds, now)
            told += [(now, change) for change in changes]
            now += LOOK_S
        return state, told


def test_beside_a_trainer_that_takes_half_the_machine_builders_give_way_once_and_stay_there() -> None:
    machine = Machine(8, lambda now: 6.0)
    state, told = machine.run(24)
    assert machine.ahead_s is not None
    assert machine.ahead_s > AHEAD_S / 2  # nobody starved it
    assert 1 <= state.builders.wanted < 8
    assert len(told) <= 24


def test_numbers_do_not_swing_with_a_load_that_does() -> None:
    machine = Machine(8, lambda now: 6.0 if int(now / 300) % 2 else 0.5)  # validation, then training
    _, told = machine.run(24)
    assert len(told) < 100  # the load itself changes 288 times


def fake_proc(proc: Path, *, ticks: list[tuple[int, int]], waited: dict[str, int], cgroup: str = "") -> None:
    """A /proc with CPUs (busy and idle ticks), pressure totals in microseconds, and one cgroup."""
    (proc / "pressure").mkdir(parents=True, exist_ok=True)
    (proc / "self").mkdir(exist_ok=True)
    lines = [f"cpu{number} {busy} 0 0 {idle} 0 0 0 0 9 9" for number, (busy, idle) in enumerate(ticks)]
    (proc / "stat").write_text("\n".join(["cpu  1 1 1 1", *lines, "intr 5"]))
    for name, total in waited.items():
        (proc / "pressure" / name).write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=1\n"
        )
    (proc / "self" / "cgroup").write_text("0::/ours\n" if cgroup else "")
    mount = f"30 20 0:26 / {cgroup} rw - cgroup2 cgroup rw\n" if cgroup else ""
    (proc / "self" / "mountinfo").write_text(mount)


class TestPressure:
    @staticmethod
    def clock() -> Callable[[], float]:
        moments = iter((100.0, 110.0))
        return lambda: next(moments)

    def test_the_figures_are_of_the_time_between_two_looks_and_of_our_cpus(self, tmp_path: Path) -> None:
        fake_proc(tmp_path, ticks=[(100, 900), (0, 1000), (50, 50)], waited={"cpu": 10**6, "io": 0})
        gauge = PressureGauge(tmp_path, self.clock(), cpus=(0, 1))
        fake_proc(
            tmp_path, ticks=[(200, 1800), (750, 1250), (999, 50)], waited={"cpu": 6 * 10**6, "io": 10**6}
        )
        found = gauge.look()
        assert found is not None
        assert (found.cpus, found.cpu_some, found.io_some, found.memory_some) == (2, 0.5, 0.1, None)
        assert found.idle_cpus == pytest.approx(0.9 + 0.25)

    def test_a_quota_of_a_cgroup_bounds_what_is_ours(self, tmp_path: Path) -> None:
        group = tmp_path / "groups" / "ours"
        group.mkdir(parents=True)
        (group / "cpu.max").write_text("150000 100000\n")
        (group / "cpu.stat").write_text("usage_usec 0\n")
        proc = tmp_path / "proc"
        fake_proc(proc, ticks=[(0, 0)] * 4, waited={}, cgroup=str(tmp_path / "groups"))
        gauge = PressureGauge(proc, self.clock(), cpus=range(4))
        assert gauge.cpus == 1.5
        (group / "cpu.stat").write_text(f"usage_usec {10 * 10**6}\n")  # one CPU over ten seconds
        fake_proc(proc, ticks=[(0, 100)] * 4, waited={}, cgroup=str(tmp_path / "groups"))
        found = gauge.look()
        assert found is not None
        assert found.idle_cpus == pytest.approx(0.5)

    def test_this_machine_can_be_looked_at(self) -> None:
        gauge = PressureGauge()
        assert gauge.cpus > 0
        found = gauge.look()
        assert found is None or 0 <= found.idle_cpus <= found.cpus + 0.01
