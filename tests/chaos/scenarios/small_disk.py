"""A month on a small disk: a corpus three times the hot disk, two epochs, kill -9 at everything that runs.

The daemons go on living through the kills, each started again when it is down. At the end the run is
complete, its books balance, every window was used once an epoch, hot never ran full, and a replay of the
recorded plan in peace has the same weights. Needs mounts of its own (`support.mounts`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from chaos import strace
from chaos.driver import InCall, Launch, Scenario
from chaos.job import Job
from stoker.observe.status import read_status
from stoker.plan.timelines import read_timelines
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import utc_now
from stoker.store.requests import file_request, read_outcome
from support.audits import STOKER, audit_of
from support.mounts import free_bytes, mount_small, resize_small
from support.pipelines import DataPipeline
from support.siege import Siege, Watch, kill
from support.small_disk import FULL, LEAST, QUICK, Sizes, leftovers, make_small_disk, recount, weights
from support.training import TrainPipeline
from support.waiting import rest, wait_until

# A short-lived victim is waited for so long; then the next worker is taken for it.
PATIENCE_S = 6.0
FEW = 4  # kills without rollbacks and the like among them
# Who is killed inside a call, in turn: daemons are started under strace, to workers it is attached.
TRACED = (
    *("stage_shard", "move", "train_supervisor", "move", "mirror"),
    *("trainer", "stage_shard", "move", "build", "download_watchdog"),
)


class SmallDiskScenario(Scenario):
    """A corpus three times a 64 MB hot disk, two epochs, through kills of every daemon and worker."""

    name = "small-disk"
    mounts = True
    sizes: ClassVar[Sizes] = FULL
    targets = (
        *("stage_shard", "train_supervisor", "download_watchdog", "guard", "trainer", "worker"),
        *("build", "move", "move", "mirror", "move"),
    )
    calls: ClassVar = {"fsync": 20, "rename": 10, "unlink": 6, "write": 40}
    longest_s = 10.0
    limit_s = 900.0
    pause_s: ClassVar[float] = 8.0  # longest wait for a kill inside a call
    rollbacks: ClassVar[tuple[float, ...]] = (0.5, 0.7)  # before which share of the strikes
    shrinks: ClassVar[tuple[float, ...]] = (0.4, 0.6)  # hot is smaller than its reserve until the next one

    with_torch: ClassVar[bool] = True
    siege: Siege | None = None

    def start(self, directory: Path) -> None:
        mount_small(directory / "hot", self.sizes.hot)
        self.data = self.make(directory)
        self.training = TrainPipeline(self.data, self.with_torch)
        self.siege = Siege(self.data, with_torch=self.with_torch)
        self.watch = Watch(self.siege)
        self.watch.start()
        self._traced = self._steps = 0
        self.asked: list[str] = []
        self._short: list[list[str]] = []  # from when to when hot was smaller than its reserve

    def make(self, directory: Path) -> DataPipeline:
        """The pipeline and its corpus; hot is mounted."""
        return make_small_disk(directory, self.sizes)

    def step(self, launch: Launch) -> Job:
        self.shrink(False)  # or what is waited for now might find no room
        share = self._steps / max(1, self.kills)
        if self._steps < self.kills:
            self.await_progress(share)
        if self._steps in self.at(self.rollbacks):
            self.roll_back()
        if self._steps in self.at(self.shrinks):
            self.shrink(True)
        self._steps += 1
        job = SiegeJob(self, launch)
        self._traced += launch.in_call is not None
        return job

    def at(self, shares: tuple[float, ...]) -> list[int]:
        """Before which strikes: `shares` of all of them, unless they are too few."""
        return [int(share * self.kills) for share in shares] if self.kills >= FEW else []

    def await_progress(self, share: float) -> None:
        """Wait for the training that is due before this share of the strikes: a quarter falls before any."""
        assert self.siege is not None
        siege, due = self.siege, (share - 0.25) * self.sizes.steps

        def far_enough() -> bool:
            siege.tend()
            step = read_status(self.data.pipeline.layout)[TRAIN_SUPERVISOR]["body"].get("step") or 0
            return step >= due or is_over(self.data)

        wait_until(far_enough, self.limit_s, f"step {due:.0f}")

    def shrink(self, now: bool) -> None:
        """Have hot hold less than what is to stay free on it; or as much as at first."""
        if now != self.watch.shrunk:
            hot = self.data.pipeline.hot
            room = free_bytes(hot) - self.data.pipeline.stage.free_floor // 2
            self.watch.shrunk = True  # before it is: what the floor is held against is the whole disk
            if now:
                self._short.append([utc_now(), ""])
            else:
                self._short[-1][1] = utc_now()
            resize_small(hot, self.sizes.hot - max(0, room) if now else self.sizes.hot)
            self.watch.shrunk = now

    def roll_back(self) -> None:
        """Ask for a rollback to the oldest checkpoint there is, whose data has left hot long ago."""
        layout = self.data.pipeline.layout
        if names := self.training.checkpoints():
            timeline = read_timelines(self.training.run.timelines).current
            args = {"to": int(names[0].removeprefix("step-")), "reason": "chaos"}
            self.asked.append(
                file_request(layout, TRAIN_SUPERVISOR, "rollback", args, {"timeline": timeline})
            )

    def next_traced(self) -> str:
        """Whose turn it is to be killed inside a call."""
        return TRACED[self._traced % len(TRACED)]

    def abandon(self) -> None:
        if self.siege is not None:
            self.watch.stop()
            self.siege.end()

    def check(self) -> None:
        self.watch.stop()
        data, record = self.data, self.training.record()
        assert (record["state"], record["finished"]) == ("finished", "data_exhausted")
        audit = audit_of(data.file, deep=True)
        assert audit["balanced"], audit["findings"]
        figures = recount(data)
        assert figures["epochs"] == [0, 1]
        assert figures["windows"] == audit["plan"]["windows"]
        self.check_hot()
        assert self.watch.most_trainers == 1
        ends = {event["exit_class"] for event in self.training.events("trainer_exited")}
        assert "bad_data" not in ends, "a set was taken away while it was needed"
        outcomes = [read_outcome(data.pipeline.layout, asked) for asked in self.asked]
        assert all(outcome and "refused" not in outcome for outcome in outcomes), outcomes
        assert not (found := leftovers(data)), found
        self.check_checkpoints()
        self.check_replay()

    def check_hot(self) -> None:
        """Sets left and came back, and the floor held all the time."""
        moved = {
            word: self.data.events(STAGE_SHARD, word) for word in ("shard_set_evicted", "shard_set_hydrated")
        }
        evicted = {event["key"][:16] for event in moved["shard_set_evicted"]}
        hydrated = {event["key"][:16] for event in moved["shard_set_hydrated"]}
        # What is read last may stay. Where three of four fit, two that leave make room for all.
        stay = 2 if self.sizes.sets == LEAST.sets else 1
        assert len(evicted) >= self.sizes.sets - stay, f"only {len(evicted)} sets were ever evicted"
        assert len(hydrated) >= self.sizes.sets // 2, f"only {len(hydrated)} sets ever came back"
        full = [event for event in self.data.events(STAGE_SHARD, "disk_full") if not self._was_short(event)]
        assert not full, full
        floor = self.data.pipeline.stage.free_floor
        assert self.watch.least_free >= floor, (
            f"{self.watch.least_free} bytes free at one time, the floor is {floor}; {self.watch.fullest}"
        )

    def _was_short(self, event: Mapping[str, Any]) -> bool:
        """Whether something happened while hot was smaller than its reserve."""
        return any(first <= event["time"] <= last for first, last in self._short)

    def check_checkpoints(self) -> None:
        """The milestones are there, here and on warm."""
        wanted = {f"step-{step:09d}" for step in self.data.pipeline.train.checkpoint.milestones}
        assert wanted <= set(self.training.checkpoints())
        assert self.data.pipeline.warm_layout is not None
        mirror = self.data.pipeline.warm_layout.checkpoints("main")
        assert wanted <= {path.name[:14] for path in mirror.glob("t*/step-*")}

    def check_replay(self) -> None:
        """`stoker replay` of the recorded plan ends with the same weights."""
        out = self.data.home / "replay"
        command = [STOKER, "replay", str(self.data.file), "main", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=self.limit_s, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        newest = self.training.checkpoints()[-1]
        replayed = next(out.rglob(newest))
        assert weights(replayed) == weights(self.training.run.checkpoints / newest)


class TinyDiskScenario(SmallDiskScenario):
    """The same with a 16 MB hot disk, within a minute or so."""

    name = "tiny-disk"
    sizes = QUICK
    longest_s = 8.0
    limit_s = 300.0
    pause_s = 5.0
    rollbacks = (0.4,)
    shrinks = (0.6,)


class LeastDiskScenario(TinyDiskScenario):
    """A corpus larger than what a 10 MB hot disk may hold: few sets, a short run, no torch, no replay."""

    name = "least-disk"
    sizes = LEAST
    with_torch = False

    def check_replay(self) -> None:
        """Left to the larger ones."""


class SiegeJob(Job):
    """From one kill to the next: the daemons are not the job's, they live on."""

    def __init__(self, scenario: SmallDiskScenario, launch: Launch) -> None:
        assert scenario.siege is not None
        self.scenario, self.siege, self.data = scenario, scenario.siege, scenario.data
        self.siege.tend()
        self._began = time.monotonic()
        self._struck = ""
        self._over = False
        self.in_call, self.traced = launch.in_call, ""
        if self.in_call is not None:
            self.traced = scenario.next_traced()
            if self.traced in DAEMONS:
                self.siege.restart(self.traced, launch.command)
        self.process = self.siege.running[TRAIN_SUPERVISOR]

    def pid(self, target: str) -> int | None:
        self.siege.tend()
        if target == "build" and self._once_blamed():
            target = "worker"  # two deaths at one row group convict the file
        found = self.siege.victim(target)
        if found is None and time.monotonic() > self._began + PATIENCE_S:
            found = self.siege.victim("worker")
        if found is None:
            return None
        self._struck = found[1]
        return found[0]

    def phase(self, target: str) -> str:
        return self._struck or self.traced

    def ended(self) -> bool:
        self._over = self._over or is_over(self.data)
        return self._over

    def reap(self, limit_s: float, orphans_s: float) -> int:
        if self.in_call is not None:
            self._await_call(self.in_call)
        if self._over or not (self._struck or self.traced):
            self._wait_for_the_end(limit_s)
            return 0
        return -9

    def _await_call(self, strike: InCall) -> None:
        """Until the kill in a call came, or long enough; whoever was traced then dies all the same."""
        deadline = time.monotonic() + self.scenario.pause_s
        tracer: subprocess.Popen[bytes] | None = None
        began = time.thread_time()
        while time.monotonic() < deadline and not self.ended():
            if strace.where_killed(strike.log) is not None:
                break
            if self.traced not in DAEMONS and (tracer is None or tracer.poll() is not None):
                tracer = self._attach(strike)
            self.siege.tend()
            began = rest(began)
        came = strace.where_killed(strike.log) is not None
        if tracer is not None:
            strace.let_go(tracer)
        if self.traced in DAEMONS:
            self.siege.restart(self.traced)
            self.instead = None if came else f"{self.traced}, soon after its start"
        elif not came:
            self._kill_a_worker()

    def _attach(self, strike: InCall) -> subprocess.Popen[bytes] | None:
        found = self.siege.victim(self.traced)
        if found is None:
            return None
        command = strace.attached(found[0], strike.call, 1 + strike.when % 3, strike.log)
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def _kill_a_worker(self) -> None:
        found = wait_until(lambda: self.ended() or self.siege.victim("worker"), 60.0, "a worker to kill")
        if isinstance(found, tuple):
            kill(found[0])
            self.instead = found[1]

    def _wait_for_the_end(self, limit_s: float) -> None:
        def over() -> bool:
            self.siege.tend()
            return is_over(self.data) and not leftovers(self.data)

        wait_until(over, limit_s, "the end of the run")
        self._over = True
        codes = self.siege.stop()
        assert set(codes.values()) == {0}, codes

    def _once_blamed(self) -> bool:
        return any(source.deaths for source in self.data.sources().values())


def is_over(data: DataPipeline) -> bool:
    """Whether the run is finished and the loop says that nothing is left to do."""
    status = read_status(data.pipeline.layout)
    supervisor = status[TRAIN_SUPERVISOR]
    here = supervisor["running"] and supervisor["body"].get("pid") == supervisor["pid"]
    return bool(here and supervisor["body"].get("at_rest") and status[STAGE_SHARD]["body"].get("complete"))
