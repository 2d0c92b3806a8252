"""How many builders and copies: what each measure leans to, and that the numbers settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.schedule.parallelism import (
    AHEAD_S,
    REST_S,
    SETTLE_S,
    SHORT_S,
    Measure,
    Number,
    builders_way,
    copies_way,
)
from stoker.observe.machine import Pressure, PressureGauge

MIB = 1 << 20
BUILDER_BYTES = 320 * MIB
LOOK_S = 6.0
CALM = Pressure(cpus=8, idle_cpus=4.0, cpu_some=0.0, io_some=0.0, memory_some=0.0)
BUSY = Measure(CALM, headroom_bytes=1 << 34, queued=3, waiting=5, building=4, copying=2)


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
    (for_builders, why), (for_copies, also) = builders_way(measure, BUILDER_BYTES, 4), copies_way(measure, 2)
    assert (4 + for_builders, 2 + for_copies) == (builders, copies)
    assert (bool(why), bool(also)) == (for_builders != 0, for_copies != 0)


def test_a_number_changes_by_one_then_rests_and_stays_within_its_bounds() -> None:
    number = Number(4).step(1, 8, 100.0, at_once=False)
    assert number.wanted == 5
    assert number.step(1, 8, 99.0 + REST_S, at_once=True) == number
    assert number.step(1, 8, 100.0 + REST_S, at_once=False).wanted == 6
    assert number.step(1, 5, 1e6, at_once=True) == number
    assert Number(1).step(-1, 8, 100.0, at_once=False) == Number(1)
    assert Number(4).step(0, 8, 100.0, at_once=False) == Number(4)


def test_after_a_step_down_it_rises_late_unless_a_trainer_is_about_to_wait() -> None:
    down = Number(4).step(-1, 8, 100.0, at_once=False)
    assert down.wanted == 3
    assert down.step(1, 8, 99.0 + SETTLE_S, at_once=False) == down
    assert down.step(1, 8, 100.0 + SETTLE_S, at_once=False).wanted == 4
    assert down.step(1, 8, 100.0 + REST_S, at_once=True).wanted == 4


class Machine:
    """A machine with so many CPUs: a trainer that takes some of them, builders one each."""

    def __init__(self, cpus: int, trainer_cpus: Callable[[float], float], rate: float = 0.4) -> None:
        self.cpus, self.trainer_cpus, self.rate, self.ahead_s = cpus, trainer_cpus, rate, 0.0

    def run(self, hours: float) -> tuple[Number, int]:
        """The number of builders after so many hours, and how often it changed."""
        number, changes, now = Number(self.cpus), 0, 0.0
        while now < hours * 3600:
            wish = self.trainer_cpus(now) + number.wanted
            some = min(1.0, max(0.0, wish / self.cpus - 0.8))
            # A builder makes data for `rate` seconds of training in a second; the trainer uses one up.
            self.ahead_s = max(0.0, self.ahead_s + LOOK_S * (number.wanted * self.rate - 1))
            pressure = Pressure(self.cpus, max(0.0, self.cpus - wish), some, 0.0, 0.0)
            measure = Measure(pressure, 1 << 40, 8, 100, number.wanted, 2, self.ahead_s)
            way, _ = builders_way(measure, BUILDER_BYTES, number.wanted)
            before, is_hungry = number, self.ahead_s < SHORT_S
            number = number.step(way, self.cpus, now, at_once=is_hungry)
            changes += number != before
            now += LOOK_S
        return number, changes


def test_beside_a_trainer_that_takes_half_the_machine_builders_give_way_once_and_stay_there() -> None:
    machine = Machine(8, lambda now: 6.0)
    number, changes = machine.run(24)
    assert machine.ahead_s > AHEAD_S / 2  # nobody starved it
    assert 1 <= number.wanted < 8
    assert changes <= 48


def test_numbers_do_not_swing_with_a_load_that_does() -> None:
    machine = Machine(8, lambda now: 6.0 if int(now / 300) % 2 else 0.5)  # validation, then training
    assert machine.run(24)[1] < 144  # half as often as the load


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
        found = gauge.sample()
        assert found is not None
        assert (found.cpus, found.cpu_some, found.io_some, found.memory_some) == (2, 0.5, 0.1, None)
        assert found.idle_cpus == pytest.approx(0.9 + 0.25)

    def test_time_that_a_hypervisor_gave_to_others_is_a_share_of_ours(self, tmp_path: Path) -> None:
        def ticks(user: int, steal: int) -> None:
            (tmp_path / "stat").write_text(
                f"cpu0 {user} 0 0 0 0 0 0 {steal} 0 0\ncpu1 0 0 0 0 0 0 0 9999 0 0\n"
            )

        ticks(0, 500)
        gauge = PressureGauge(tmp_path, self.clock(), cpus=(0,))
        ticks(750, 750)
        found = gauge.sample()
        assert found is not None and found.steal == 0.25

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
        found = gauge.sample()
        assert found is not None
        assert found.idle_cpus == pytest.approx(0.5)

    def test_this_machine_can_be_looked_at(self) -> None:
        gauge = PressureGauge()
        assert gauge.cpus > 0
        found = gauge.sample()
        assert found is None or 0 <= found.idle_cpus <= found.cpus + 0.01
