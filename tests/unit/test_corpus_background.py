"""Who reads in the background holds still now and then, and longer while others wait for the disk."""

from __future__ import annotations

from stoker.corpus.background import EVERY_S, LONGEST_S, STILL_S, Background
from stoker.observe.pressure import Pressure


class Machine:
    """A clock that moves by pauses alone, and a gauge that tells the next of these shares."""

    def __init__(self, *waited: float | None) -> None:
        self.now, self.waited, self.looks = 100.5, list(waited), 0

    def moment(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def look(self) -> Pressure | None:
        self.looks += 1
        if self.looks % 2:
            return None  # the look that begins a stretch
        share = self.waited.pop(0) if len(self.waited) > 1 else self.waited[0]
        return Pressure(cpus=2, idle_cpus=1, io_some=share)

    def reader(self) -> Background:
        return Background(self, self.moment, self.pause)


def test_it_holds_still_together_with_all_others_and_reads_on_where_nobody_waits() -> None:
    machine = Machine(0.1)
    reader = machine.reader()
    reader.step()
    assert machine.now == 100.5, "not yet"
    machine.now = 102.3
    reader.step()
    assert machine.now == 102.3 + STILL_S
    machine.now = 104.0 - 0.01
    reader.step()
    assert machine.now == 104.0 - 0.01, "the next moment is one that every reader knows: a multiple of two"
    machine.now = 104.0
    reader.step()
    assert machine.now == 104.0 + STILL_S


def test_while_others_wait_for_the_disk_it_stays_still_and_says_that_it_lives() -> None:
    machine = Machine(0.9, 0.5, 0.2)
    words: list[float] = []
    reader = machine.reader()
    machine.now = 102.0
    reader.step(lambda: words.append(machine.now))
    assert len(words) == 2
    assert 103.0 < machine.now < 104.0


def test_a_busy_disk_slows_it_down_for_ever_but_never_stops_it() -> None:
    machine = Machine(1.0)
    reader = machine.reader()
    machine.now = 102.0
    reader.step()
    assert LONGEST_S <= machine.now - 102.0 < LONGEST_S + 1.0
    resting = machine.now
    reader.step()
    assert machine.now == resting, "it reads for up to two seconds first"
    machine.now += EVERY_S
    reader.step()
    assert machine.now > resting + EVERY_S


def test_a_kernel_that_tells_nothing_holds_nobody_up() -> None:
    machine = Machine(None)
    machine.reader()
    reader = machine.reader()
    machine.now = 102.0
    reader.step()
    assert machine.now == 102.0 + STILL_S
