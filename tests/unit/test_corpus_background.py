"""Who reads in the background holds still now and then, and longer while others wait for the disk."""

from __future__ import annotations

import pytest

from stoker.corpus.source.hash_worker import (
    EVERY_S,
    GRACE_S,
    LITTLE,
    LOOK_S,
    MOST_TURNS,
    Background,
)
from stoker.observe.machine import Pressure

MOMENT_S = GRACE_S + LOOK_S
BEGIN = 25 * EVERY_S


class Machine:
    """A clock that moves by pauses alone, and a gauge that tells the next of these shares."""

    def __init__(self, *waited: float | None) -> None:
        self.now, self.waited, self.looked = BEGIN - 0.5, list(waited), []

    def moment(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def look(self) -> Pressure | None:
        self.looked.append(round(self.now - BEGIN, 3))
        if len(self.looked) % 2:
            return None  # the look that begins a stretch
        share = self.waited.pop(0) if len(self.waited) > 1 else self.waited[0]
        return Pressure(cpus=2, idle_cpus=1, io_some=share)

    def reader(self) -> Background:
        return Background(self.look, self.moment, self.pause)


def test_it_holds_still_together_with_all_others_and_reads_on_where_nobody_waits() -> None:
    machine = Machine(0.1)
    reader = machine.reader()
    reader.step(LITTLE)
    assert machine.now == BEGIN - 0.5, "not yet"
    machine.now = BEGIN + 0.03  # a read that ended a little late
    reader.step(LITTLE)
    assert machine.now == pytest.approx(BEGIN + MOMENT_S)
    assert machine.looked == [GRACE_S, MOMENT_S], "once the others' last reads are over, until they read on"
    machine.now = BEGIN + EVERY_S - 0.01
    reader.step(LITTLE)
    assert machine.now == BEGIN + EVERY_S - 0.01
    machine.now = BEGIN + EVERY_S
    reader.step(LITTLE)
    assert machine.now == pytest.approx(BEGIN + EVERY_S + MOMENT_S)


def test_after_a_long_read_it_waits_for_the_next_moment_for_the_others_read_on_by_now() -> None:
    machine = Machine(0.1)
    reader = machine.reader()
    machine.now = BEGIN + 1.0
    reader.step(LITTLE)
    assert machine.looked == [EVERY_S + GRACE_S, EVERY_S + MOMENT_S]


def test_while_others_wait_for_the_disk_it_stays_still_and_says_that_it_lives() -> None:
    machine = Machine(0.9, 0.5, 0.2)
    words: list[float] = []
    reader = machine.reader()
    machine.now = BEGIN
    reader.step(LITTLE, lambda: words.append(machine.now))
    assert machine.now == pytest.approx(BEGIN + 2 * EVERY_S + MOMENT_S)
    silences = [after - before for before, after in zip([BEGIN, *words], [*words, machine.now], strict=True)]
    assert max(silences) < 1.5


def test_a_busy_disk_slows_it_down_for_ever_but_never_stops_it() -> None:
    machine = Machine(1.0)
    reader = machine.reader()
    machine.now = BEGIN
    reader.step(LITTLE)
    assert machine.now == pytest.approx(BEGIN + MOST_TURNS * EVERY_S)
    resting = machine.now
    reader.step(LITTLE)
    assert machine.now == resting, "it reads until the next moment"
    machine.now += EVERY_S
    reader.step(LITTLE)
    assert machine.now > resting + EVERY_S


def test_a_kernel_that_tells_nothing_holds_nobody_up() -> None:
    machine = Machine(None)
    reader = machine.reader()
    machine.now = BEGIN
    reader.step(LITTLE)
    assert machine.now == pytest.approx(BEGIN + MOMENT_S)


def test_what_nobody_feels_is_read_without_a_stop() -> None:
    machine = Machine(1.0)
    told: list[int] = []
    reader = machine.reader()
    machine.now = BEGIN
    for _ in range(3):
        reader.following(told.append)(LITTLE // 4)
    assert machine.now == BEGIN
    reader.following(told.append)(LITTLE // 4)
    assert machine.now > BEGIN + EVERY_S
    assert len(told) > 4 + EVERY_S, "it says that it lives"
    assert set(told) == {LITTLE // 4}
