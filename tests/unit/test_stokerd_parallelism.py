"""How many builders and copies the loop has at work, and copies that were begun."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.corpus.records.sources import Source, SourceState
from stoker.corpus.staging.disk_contents import ScanResult, look_at, parquet_name, reconcile_hot
from stoker.observe.machine import MemoryFacts, Pressure, PressureGauge
from stoker.store.layout import HotLayout
from stokerd.sharding.parallelism import LOOK_EVERY_S, Parallelism
from stokerd.sharding.work import BuildWork
from support.shard_state import Clock, MakeShard

CALM = Pressure(cpus=4, idle_cpus=2.0)


@dataclass
class Machine(PressureGauge):
    """What the kernel says of four CPUs."""

    cpus: float = 4.0
    now: Pressure = CALM

    def sample(self) -> Pressure:
        return self.now


class Loop:
    """Four CPUs with memory to spare, four builders at work, files waiting."""

    def __init__(self, make_shard: MakeShard, clock: Clock, *, workers: Any, copies: Any) -> None:
        self.shard = make_shard(shard__workers=workers, stage__copies=copies)
        self.state, self.clock, self.machine = self.shard.state, clock, Machine()
        for name in "xyz":
            self.shard.source(name, "staged")
        for number in range(4):
            self.shard.source(f"b{number}", "building")
            self.shard.job("build", f"b{number}", BuildWork())
        self.state.memory.facts = MemoryFacts(1 << 40)
        self.parallelism = Parallelism(self.shard.context, self.state, self.machine)

    def look(self, times: int) -> None:
        for _ in range(times):
            self.clock.now += LOOK_EVERY_S
            self.shard.apply(self.parallelism.refresh(self.state))

    @property
    def limits(self) -> tuple[int, int]:
        return self.shard.dataset.limits.builders, self.shard.dataset.limits.stagers


def test_a_number_that_changes_is_told_with_its_reason_and_shown(make_shard: MakeShard, clock: Clock) -> None:
    loop = Loop(make_shard, clock, workers="auto", copies="auto")
    assert loop.limits == (4, 2), "a builder a CPU at the start"
    loop.machine.now = replace(CALM, idle_cpus=0.0, memory_some=0.9)
    loop.look(2)  # the first look only begins to measure
    assert loop.limits == (3, 2)
    ((word, told),) = loop.shard.events.all
    assert (word, told["what"], told["from"], told["to"]) == ("parallelism_changed", "builders", 4, 3)
    assert "memory" in told["reason"]
    assert loop.shard.status()["parallelism"] == {"builders": 3, "copies": 2}
    assert b"stoker_builders_wanted 3.0" in loop.shard.context.metrics.text()


def test_a_number_in_the_file_stays_whatever_is_measured(make_shard: MakeShard, clock: Clock) -> None:
    loop = Loop(make_shard, clock, workers=4, copies=3)
    loop.machine.now = replace(CALM, idle_cpus=0.0, memory_some=0.9, io_some=0.9)
    loop.look(50)
    assert loop.limits == (4, 3)
    assert loop.shard.events.all == []


def test_a_start_takes_every_cpu_that_memory_allows(make_shard: MakeShard, clock: Clock) -> None:
    loop = Loop(make_shard, clock, workers="auto", copies="auto")
    soft = loop.shard.pipeline.shard.memory.soft
    for headroom, builders in ((1 << 40, 4), (2 * soft, 2), (0, 1)):
        loop.state.memory.facts = MemoryFacts(headroom)
        Parallelism(loop.shard.context, loop.state, loop.machine)
        assert loop.limits[0] == builders


def test_an_idle_loop_is_not_woken_to_measure(make_shard: MakeShard, clock: Clock) -> None:
    loop = Loop(make_shard, clock, workers="auto", copies="auto")
    loop.look(1)
    assert loop.parallelism.due < float("inf")
    for subject in list(loop.shard.pool.busy):
        loop.shard.pool.end(subject)
    loop.machine.now = replace(CALM, memory_some=0.9)
    loop.look(50)
    assert loop.parallelism.due == float("inf")
    assert loop.shard.events.all == []


class TestPartialCopies:
    SOURCE = Source("d", "a.parquet", 1000, "a" * 64)

    def test_a_look_finds_them_and_only_those_of_files_to_come_are_kept(self, tmp_path: Path) -> None:
        hot = HotLayout(tmp_path)
        hot.parquet.mkdir()
        name = parquet_name(self.SOURCE)
        (hot.parquet / f".part-{name}").write_bytes(bytes(400))
        seen = look_at(hot, "d")
        assert seen.partial == {name: 400}
        assert seen.parquet == ()

        def removed(seen: ScanResult, state: SourceState) -> list[str]:
            found = reconcile_hot(hot, seen, {"a.parquet": replace(self.SOURCE, state=state)})
            return sorted(path.removeprefix(f"{hot.parquet}/.part-") for path in found.remove)

        assert removed(seen, "seen") == []
        assert removed(seen, "duplicate") == [name]
