"""How many work at once, copies that were begun, and the wait for a source folder, as the loop holds them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from stokerd.sharding.source_unavailable import SourceAway

from stoker.config.schema import BuilderMemory
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.parallelism import VOTES
from stoker.corpus.schedule.state import Limits
from stoker.corpus.staging.disk_contents import HotSeen, look_at_hot
from stoker.corpus.staging.reconcile import parquet_name, reconcile_hot
from stoker.corpus.staging.size_estimate import Estimate, Workload
from stoker.kit.metrics import Metrics
from stoker.kit.workers.parent import WorkerExit
from stoker.observe.pressure import Pressure
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout
from stokerd.sharding import parallelism as parallelism_desk
from stokerd.sharding.parallelism import ParallelismDesk

LIMITS = Limits(stagers=1, builders=1, provers=1, queue_files=9, queue_bytes=9, release="never")
CALM = Pressure(cpus=4, idle_cpus=2.0)


@dataclass
class Told:
    events: list[dict[str, Any]] = field(default_factory=list)

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


@dataclass
class Gauge:
    cpus: float = 4.0
    now: Pressure = CALM

    def look(self) -> Pressure:
        return self.now


class Loop:
    """A desk and what it looks at: four CPUs, three builders at work, files waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, workers: Any, copies: Any) -> None:
        self.told, self.gauge, self.now = Told(), Gauge(), 0.0
        self.busy = {f"b{number}": "build" for number in range(4)}
        sources = {name: Source("d", name, 60, name * 64, state="staged") for name in "xyz"}
        pipeline = SimpleNamespace(
            shard=SimpleNamespace(workers=workers, memory=BuilderMemory()),
            stage=SimpleNamespace(copies=copies),
            train=SimpleNamespace(seq_len=32),
        )
        self.metrics = Metrics("stage_shard", "p")
        monkeypatch.setattr(parallelism_desk.time, "monotonic", lambda: self.now)
        self.desk = ParallelismDesk(
            SimpleNamespace(pipeline=pipeline, metrics=self.metrics, events=self.told),  # type: ignore[arg-type]
            crew=SimpleNamespace(busy=self.busy),  # type: ignore[arg-type]
            book=SimpleNamespace(sources=Catalog(sources)),  # type: ignore[arg-type]
            residence=SimpleNamespace(holdings=[]),  # type: ignore[arg-type]
            headroom=lambda: 1 << 40,
            gauge=self.gauge,  # type: ignore[arg-type]
        )

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now += 2.0
            self.desk.look()


def test_a_number_that_changes_is_told_with_its_reason_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, workers="auto", copies="auto")
    assert loop.desk.bounded(LIMITS) == replace(LIMITS, builders=4, stagers=2)
    loop.gauge.now = replace(CALM, idle_cpus=0.0, memory_some=0.9)
    loop.look(VOTES + 1)  # the first look only begins to measure
    assert loop.desk.bounded(LIMITS) == replace(LIMITS, builders=3, stagers=2)
    (told,) = loop.told.events
    assert (told["event"], told["what"], told["from"], told["to"]) == (
        "parallelism_changed",
        "builders",
        4,
        3,
    )
    assert "memory" in told["reason"]
    assert loop.desk.show() == {"parallelism": {"builders": 3, "copies": 2}}
    assert b'stoker_builders_wanted{pipeline="p"} 3.0' in loop.metrics.text()


def test_a_number_in_the_file_stays_whatever_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, workers=4, copies=3)
    loop.gauge.now = replace(CALM, idle_cpus=0.0, memory_some=0.9, io_some=0.9)
    loop.look(50)
    assert loop.desk.bounded(LIMITS) == replace(LIMITS, builders=4, stagers=3)
    assert loop.told.events == []


def test_an_idle_loop_is_not_woken_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, workers="auto", copies="auto")
    assert loop.desk.due < float("inf")
    loop.busy.clear()
    assert loop.desk.due == float("inf")
    loop.gauge.now = replace(CALM, memory_some=0.9)
    loop.look(50)
    assert loop.told.events == []


class TestPartialCopies:
    SOURCE = Source("d", "a.parquet", 1000, "a" * 64)

    def test_what_is_copied_already_is_not_claimed_once_more(self) -> None:
        estimate = Estimate(2, 1.0)
        for copied, claimed in (({}, 1000), ({"a.parquet": 400}, 600), ({"a.parquet": 2000}, 0)):
            work = Workload(staging=[self.SOURCE], copied=copied)
            assert estimate.hot_claims(work)["staging"] == claimed
        assert estimate.hot_claims(Workload(staging=[self.SOURCE], linked=True))["staging"] == 0

    def test_a_look_finds_them_and_only_those_of_files_to_come_are_kept(self, tmp_path: Any) -> None:
        hot = HotLayout(tmp_path)
        hot.parquet.mkdir()
        name = parquet_name(self.SOURCE)
        (hot.parquet / f".part-{name}").write_bytes(bytes(400))
        (hot.parquet / f".part-{name}.json").write_bytes(b"{}")
        seen = look_at_hot(hot, "d")
        assert seen.partial == {name: 400}
        assert seen.parquet == ()

        def removed(seen: HotSeen, state: Any) -> list[str]:
            found = reconcile_hot(hot, seen, {"a.parquet": replace(self.SOURCE, state=state)})
            return sorted(path.removeprefix(f"{hot.parquet}/.part-") for path in found.remove)

        assert removed(seen, "seen") == []
        assert removed(seen, "duplicate") == [name, f"{name}.json"]
        (hot.parquet / f".part-{name}").unlink()
        assert look_at_hot(hot, "d").partial == {name: 0}


class TestSourceAway:
    AWAY = WorkerExit("finished", 0, None, {"status": "unavailable", "reason": "mount it"}, None, 0)
    HUNG = WorkerExit("timed_out", None, 9, None, None, 0)
    STAGED = WorkerExit("finished", 0, None, {"status": "staged", "how": "copy"}, None, 0)

    @staticmethod
    def waiting(*jobs: Any, once: bool = False) -> tuple[SourceAway, Told]:
        told = Told()
        context = SimpleNamespace(metrics=Metrics("stage_shard", "p"), events=told, once=once)
        return SourceAway(context, SimpleNamespace(jobs=jobs)), told  # type: ignore[arg-type]

    def test_nothing_is_staged_for_a_while_and_it_is_told_once(self) -> None:
        away, told = self.waiting()
        job: Any = SimpleNamespace(kind="stage", subject="a")
        assert (away.until, away.trouble) == (0.0, "")
        for ended in (self.AWAY, self.HUNG, self.AWAY):
            away.take(job, ended)
            assert away.until > time.monotonic()
        assert "mount it" in away.trouble
        away.take(job, self.STAGED)
        assert (away.until, away.trouble) == (0.0, "")
        assert [each["event"] for each in told.events] == ["staging_paused", "staging_resumed"]

    def test_what_hangs_in_the_kernel_keeps_others_from_hanging_there_too(self) -> None:
        away, _ = self.waiting(SimpleNamespace(kind="stage", abandoned=True))
        assert away.until == float("inf")
        assert "hangs" in away.trouble
        assert self.waiting(SimpleNamespace(kind="sync", abandoned=True))[0].until == 0.0

    def test_once_gives_up_at_last(self) -> None:
        away, _ = self.waiting(once=True)
        with pytest.raises(UnavailableError, match="mount it"):
            for _ in range(9):
                away.take(SimpleNamespace(kind="stage", subject="a"), self.AWAY)  # type: ignore[arg-type]
