"""How workers of the stage-shard loop end: judged by evidence, counted, and what has to pause for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from stoker.corpus.schedule.outcome import Evidence, Verdict, judge
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.kit.process.sampler import sample_process
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.observe.headroom import MemoryFacts
from stoker.observe.ledger import Disk
from stoker.store.errors import StorageError
from stokerd.sharding.disk_full import WRITES, FullDisks
from stokerd.sharding.disks import Yard
from stokerd.sharding.memory import MemoryDesk
from stokerd.sharding.warm_disk import NoWarm, WarmYard

REASONS = ("memory", "disk_hot", "disk_warm", "disk_state")
WRITERS = ("stage", "build", "hydrate", "sync")
SAMPLE_EVERY_S = 3.0


class FailureDesk:
    """Evidence in, verdicts out; `memory` and `disks` hold what pauses."""

    def __init__(
        self, context: DaemonContext, crew: WorkerPool[Any], *, hot: Yard, warm: WarmYard | NoWarm
    ) -> None:
        self._context, self._crew = context, crew
        self._hot, self._warm = hot, warm
        self.memory = MemoryDesk(context, crew, context.pipeline.shard.memory)
        self.disks = FullDisks(
            context,
            {"hot": lambda: _measured(hot), "warm": lambda: _measured(warm), "state": self._state_disk},
            {"hot": hot.measure_soon, "warm": warm.measure_soon, "state": lambda: None},
        )
        self.recycled = 0
        self._sample_at = 0.0
        metrics = context.metrics
        self._ends = metrics.counter(
            "worker_ends_total", "Ends of workers and of warm workers' tasks.", ("activity", "class")
        )
        self._paused = metrics.gauge("paused", "1 while work waits for this.", ("reason",))
        self._recycled = metrics.counter(
            "workers_recycled_total", "Builders ended at a commit point because they had grown."
        )
        self._stuck = metrics.gauge("workers_stuck", "Killed workers that the kernel does not let go.")
        self._rss = metrics.gauge(
            "worker_rss_bytes", "Resident memory of the largest worker of an activity.", ("activity",)
        )

        crew.on_start = self.memory.begin

    # Ends

    def judge(self, job: Job[Any], ended: WorkerExit) -> Verdict:
        """What the end says, by all there is to know."""
        if "verdict" in job.facts:
            verdict: Verdict = job.facts["verdict"]
            return verdict
        before: MemoryFacts | None = job.facts.get("memory")
        facts = self.memory.look_now()
        disk = _measured(self._warm if WRITES.get(job.kind) == "warm" else self._hot)
        evidence = Evidence(
            oom_killed=before is not None and facts.killed_since(before),
            headroom_bytes=facts.headroom_bytes,
            free_bytes=None if disk is None else disk.free_bytes,
        )
        verdict = job.facts["verdict"] = judge(ended, evidence)
        return verdict

    def count(self, job: Job[Any], ended: WorkerExit) -> None:
        """Count an end, whoever acts on it."""
        kind = self.judge(job, ended).kind
        self._ends.labels(job.kind, kind).inc()
        if kind == "recycled":
            self.recycled += 1
            self._recycled.inc()
        if kind in ("done", "recycled"):
            self.disks.works(job.kind)

    @property
    def busy(self) -> Mapping[str, str]:
        """What every worker is doing."""
        return self._crew.busy

    # What waits

    def paused_until(self, activity: str) -> float:
        """When the activity may begin again, on the monotonic clock; `inf` while it waits for something."""
        waits = activity in WRITERS and self._context.reserve.spent
        waits |= WRITES.get(activity) in self.disks.waiting()
        return float("inf") if waits else 0.0

    def limited(self, limits: Limits, is_ready: Callable[[str], bool]) -> tuple[Limits, str | None]:
        """The limits as memory allows, and the path that is to be built alone now."""
        alone = self.memory.next_alone(is_ready)
        return self.memory.limited(limits, alone), alone

    @property
    def holds_back(self) -> bool:
        """Whether something that could be done waits for memory or a disk."""
        return self.memory.ladder.paused or bool(self.disks.waiting()) or self._context.reserve.spent

    def look(self) -> None:
        """Once a turn: whether what waits may go on; with --once nothing waits for long."""
        if self._context.once and self._context.reserve.spent:
            raise StorageError(f"{self._context.layout.state} is full; free some space, then start again")
        self.memory.look()
        self.disks.look()

    @property
    def due(self) -> float:
        """When to look again at the latest, on the monotonic clock."""
        return min(self.disks.due, time.monotonic() + 1.0 if self.memory.ladder.paused else float("inf"))

    # Telling

    def waiting(self) -> dict[str, str]:
        """Why work waits, in words, by the reason's name."""
        found = {f"disk_{place}": why for place, why in self.disks.waiting().items()}
        if self._context.reserve.spent:
            found["disk_state"] = f"{self._context.layout.state} is full; free some space"
        if self.memory.ladder.paused:
            found["memory"] = self.memory.why
        return found

    @property
    def standing(self) -> str:
        """One phrase for the status line; empty when nothing waits."""
        words = [f"paused ({reason}): {why}" for reason, why in self.waiting().items()]
        words += [f"{name} hangs in the kernel (pid {pid})" for name, pid in self._abandoned().items()]
        return "; ".join(words)

    def show(self) -> Mapping[str, Any]:
        """Set the gauges; returns the part of the status snapshot."""
        waiting = self.waiting()
        for reason in REASONS:
            self._paused.labels(reason).set(reason in waiting)
        stuck = self._abandoned()
        self._stuck.set(len(stuck))
        self._show_rss()
        return {
            "paused": waiting,
            "memory": self.memory.shown(),
            "recycled": self.recycled,
            "stuck": stuck,
        }

    def _abandoned(self) -> dict[str, int]:
        """The workers that the kernel does not let go: pid by what they were doing."""
        return {job.name: job.worker.pid for job in self._crew.jobs if job.abandoned}

    def _show_rss(self) -> None:
        now = time.monotonic()
        if now < self._sample_at:
            return
        self._sample_at = now + SAMPLE_EVERY_S
        largest = dict.fromkeys(WRITERS, 0)
        for job in self._crew.jobs:
            # From outside: a worker that is busy in native code has not told for a while.
            rss = max(job.worker.sample.rss_bytes, sample_process(job.worker.pid).rss_bytes)
            largest[job.kind] = max(largest.get(job.kind, 0), rss)
        for activity, rss in largest.items():
            self._rss.labels(activity).set(rss)

    def _state_disk(self) -> Disk | None:
        found = os.statvfs(self._context.layout.state)  # local by contract: it answers
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return Disk(0, found.f_blocks * found.f_frsize, blocks * found.f_frsize)


def _measured(yard: Yard | NoWarm) -> Disk | None:
    return yard.disk if yard.measured else None
