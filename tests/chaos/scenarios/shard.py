"""The stage-shard loop: it and its workers die, mostly inside system calls; the sets come out the same.

The daemon lives on from kill to kill and is started again when it is down. The sets are held against two
builds in peace: one by one, slowly; and from the same files under other names, in another order, by three
workers at once. Half of the kills are inside a write, sync, rename or unlink of a process that attached
strace to itself at its start, at a task, or in a phase of sealing (support.striking).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from chaos import strace
from chaos.driver import Launch, Scenario
from chaos.job import Job
from stoker.store.layout import STAGE_SHARD, WarmLayout
from support.audits import audit_of
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import has_ended
from support.siege import Siege, kill
from support.small_disk import leftovers
from support.striking import Blow, Striker
from support.waiting import wait_until

FILES, ROWS, ROW_GROUP = 8, 120, 30
SEALING = ("seal_hash", "seal_manifest", "seal_sums", "publish")
# Who dies inside a call, and where in its work; drawn evenly from those who have something to do.
BUILD = tuple(("build", phase) for phase in ("task", "open", "commit", "commit", *SEALING, *SEALING))
DAEMON = ((STAGE_SHARD, "start"), (STAGE_SHARD, ""))
ROOMS = {
    **{"stage": "corpus", "lister": "corpus", "sweep": "corpus", "quarantine": "corpus"},
    **{"build": "shards", "engine": "shards", "move": "shards"},
}
# How often a call is made from there on, where that is less than what the strikes are drawn from.
AT_MOST = {("publish", "rename"): 1, ("seal_sums", "rename"): 2, ("task", "rename"): 1}
ONLY_WRITE = ("engine", "lister")
# How long a kill inside a call is waited for: then whoever gets a task next dies in writing, and if nobody
# does for as long again, somebody dies at once.
PATIENCE_S = 5.0
ENDS = {0, -signal.SIGTERM}  # of a daemon asked to stop; the latter before it could listen


class ShardScenario(Scenario):
    """The stage-shard loop and its workers, several at once, killed in writes, syncs, renames and seals."""

    name = "shard"
    targets = ("build", "any", "stage_shard", "build", "lister")
    calls: ClassVar = {"fsync": 4, "rename": 3, "unlink": 2, "write": 6}
    timed_every = 3
    longest_s = 1.5
    limit_s = 180.0

    siege: Siege | None = None

    def __init__(self) -> None:
        self._round = 0
        self._ground: Ground | None = None

    def start(self, directory: Path) -> None:
        self._round += 1
        if self._ground is None:
            self._ground = Ground(directory.parent / "ground")
        self.random = random.Random(self._round)
        number, warm = self._round, self._round % 2 == 0
        self.data = self._ground.copy(
            directory,
            **({"warm": str(directory / "warm"), "evict": {"target_free": "0B"}} if warm else {}),
            tokenizer__engine=("auto", "tokenizers", "auto")[number % 3],
            shard__workers=1 + number % 3,
            shard__commit={"every": "0.01s", "bytes": "8KiB"} if number % 4 else {"every": "2s"},
            shard__release=("after_sync" if warm else "after_proof") if number % 5 else "never",
            stage__queue_files=1 + number % 4,
        )
        self.striker = Striker(directory / "strikes")
        self.siege = Siege(self.data, (STAGE_SHARD,), environ=self.striker.environ, never_exits=True)

    def step(self, launch: Launch) -> Job:
        return ShardJob(self, launch)

    def abandon(self) -> None:
        if self.siege is not None:
            self.siege.end()

    def is_over(self) -> bool:
        """Whether everything has come to its end and been tidied up, by what lies on the disks."""
        data = self.data
        states = data.states()
        ended = len(states) == FILES + 2 and set(states.values()) <= self.endings()
        return ended and not leftovers(data)[: 0 if data.pipeline.shard.release == "never" else None]

    def places(self) -> list[tuple[str, str]]:
        """Who may yet come to make a call, and where in its work."""
        states = self.data.states()
        seen = len(states) < FILES + 2 or "seen" in states.values()
        busy = {
            "stage": seen,
            "engine": (seen or "staged" in states.values())
            and self.data.pipeline.tokenizer.engine != "tokenizers",
            "quarantine": states.get("damaged.parquet") != "quarantined",
            "sweep": self.data.pipeline.shard.release != "never",
            "move": self.data.pipeline.warm is not None,
            "lister": True,
        }
        return [*BUILD, *DAEMON, *((name, "task") for name, is_busy in busy.items() if is_busy)]

    def endings(self) -> set[str]:
        """In which states a source may be at the end."""
        last = {"never": "synced" if self.data.pipeline.warm else "proven"}
        return {last.get(self.data.pipeline.shard.release, "released"), "duplicate", "quarantined"}

    def check(self) -> None:
        data, ground = self.data, self._ground
        assert ground is not None
        states = Counter(data.states().values())
        assert (states["duplicate"], states["quarantined"], states.total()) == (1, 1, FILES + 2), states
        assert data.states()["damaged.parquet"] == "quarantined", data.states()
        assert data.reasons()["damaged.parquet"]["row_group"] == 2
        assert len(data.reasons()) == 1, "something else was quarantined"
        assert data.sets() == ground.sets
        if data.pipeline.warm is not None:
            folder = WarmLayout(data.pipeline.warm).shards("prose")
            assert sets_in(folder) == ground.sets
        left = [path for path in leftovers(data) if "/hot/parquet/" not in path]
        assert not left, left
        audit = audit_of(data.file, deep=True)
        assert audit["balanced"], audit["findings"]


class Ground:
    """The source folder with its receipts, made once, and its sets as two builds in peace make them."""

    def __init__(self, home: Path) -> None:
        self.made = make_pipeline(
            home, shard__workers=1, tokenizer__engine="tokenizers", shard__commit={"every": "1h"}
        )
        for number in range(FILES):
            write_fineweb(self.made.source / f"{number}.parquet", ROWS, seed=number, row_group=ROW_GROUP)
        write_fineweb(self.made.source / "1-twin.parquet", ROWS, seed=1, row_group=ROW_GROUP)
        flip_page(write_fineweb(self.made.source / "damaged.parquet", ROWS, seed=99, row_group=ROW_GROUP), 2)
        ended = self.made.once("download_watchdog")
        assert ended.returncode == 0, ended.stderr
        in_peace = self.copy(home / "in-peace")
        assert (ended := in_peace.once(STAGE_SHARD)).returncode == 0, ended.stderr
        self.sets = in_peace.sets()
        assert len(self.sets) == FILES
        assert self._in_another_order(home / "turned", in_peace) == self.sets

    def _in_another_order(self, home: Path, in_peace: DataPipeline) -> dict[str, dict[str, bytes]]:
        """The last file first, three at once, in tiny commits, with the same tokenizer given as a file."""
        tokenizer = in_peace.pipeline.layout.datasets / in_peace.pin().tokenizer.file
        turned = make_pipeline(
            home,
            shard__workers=3,
            shard__commit={"every": "0.01s", "bytes": "4KiB"},
            tokenizer={"file": str(tokenizer), "engine": "auto"},
        )
        for number, file in enumerate(sorted(self.made.source.iterdir(), reverse=True)):
            os.link(file, turned.source / f"{number}.parquet")
        turned.drain()
        return turned.sets()

    def copy(self, home: Path, **changes: Any) -> DataPipeline:
        """A pipeline of its own over the same folder, which needs no receipts to be made."""
        data = make_pipeline(home, **{"dataset__source__path": str(self.made.source), **changes})
        shutil.copytree(self.made.home / "state", home / "state", dirs_exist_ok=True)
        return data


def sets_in(folder: Path) -> dict[str, dict[str, bytes]]:
    """Every set there: its files' bytes by name, but for the build note."""
    return {
        each.name: {
            file.name: file.read_bytes() for file in sorted(each.iterdir()) if file.name != "build.json"
        }
        for each in folder.iterdir()
    }


class ShardJob(Job):
    """From one kill to the next: the daemon is not the job's, it lives on."""

    def __init__(self, scenario: ShardScenario, launch: Launch) -> None:
        assert scenario.siege is not None
        self.scenario, self.siege = scenario, scenario.siege
        self.random = scenario.random
        self._struck, self._victim = "", 0
        self._over = False
        self._began = time.monotonic()
        self.in_call = launch.in_call
        if self.random.random() < 0.1 and self.siege.running:
            self._restart_in_peace()
        self.place = self.random.choice(scenario.places()) if self.in_call is not None else ("", "")
        if self.in_call is not None and self.place[1]:
            self._aim()
            if self.place == (STAGE_SHARD, "start"):
                self.siege.kill(STAGE_SHARD)
        self.siege.tend()
        self.process = self.siege.running[STAGE_SHARD]

    def _restart_in_peace(self) -> None:
        self.scenario.striker.forget()
        process = self.siege.running[STAGE_SHARD]
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) in ENDS, self.siege.last_words(STAGE_SHARD)
            self.siege.start(STAGE_SHARD)

    def _aim(self) -> None:
        assert self.in_call is not None
        name, point = self.place
        module = f"stoker.{ROOMS[name]}.{name}_worker" if name in ROOMS else f"stokerd.{name}"
        call, when = self.in_call.call, self.in_call.when
        if name in ONLY_WRITE:
            call, when = "write", min(when, 2)
        most = 1 if call == "unlink" else AT_MOST.get((point, call), when)
        blow = Blow(module, point, call, min(when, most))
        self.scenario.striker.aim(blow, self.in_call.log)

    def pid(self, target: str) -> int | None:
        self.siege.tend()
        late = time.monotonic() > self._began + self.scenario.longest_s + PATIENCE_S
        found = self.siege.victim("worker" if target == "any" else target)
        if found is None and late:
            found = self.siege.victim("worker") or self.siege.victim(STAGE_SHARD)
        if found is None:
            time.sleep(0.005)
            return None
        self._victim, self._struck = found
        return self._victim

    def phase(self, target: str) -> str:
        taker = self.scenario.striker.taker or self.place[0]
        return self._struck or " ".join((taker, self.place[1])).strip()

    def ended(self) -> bool:
        self._over = self._over or self.scenario.is_over()
        return self._over

    def reap(self, limit_s: float, orphans_s: float) -> int:
        if self._struck:  # dying takes a moment, in which it still looks alive
            wait_until(lambda: has_ended(self._victim), what="the end of who was killed")
        if self.in_call is not None:
            self._await_call()
            if strace.where_killed(self.in_call.log) is not None:
                return -9  # whether or not it was over by then: that is seen in the next step
        if self._over or not (self._struck or self.in_call):
            self._wait_for_the_end(limit_s)
            return 0
        return -9

    def _await_call(self) -> None:
        """Until the kill in a call came, or long enough; then somebody dies all the same."""
        assert self.in_call is not None
        tracer = None
        with contextlib.ExitStack() as stack:
            if self.place == (STAGE_SHARD, ""):
                tracer = self._attach()
                stack.callback(strace.let_go, tracer)
            if self._comes():
                return
        if not self._over:
            self.scenario.striker.aim(Blow("_worker", "task", "write", 1), self.in_call.log)
            self.place = ("", "task")
            if self._comes():
                return
        self.scenario.striker.forget()
        if not self._over and strace.where_killed(self.in_call.log) is None:
            self._kill_another()

    def _comes(self) -> bool:
        """Whether the kill comes while it is waited for."""
        assert self.in_call is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.ended():
            if strace.where_killed(self.in_call.log) is not None:
                return True
            self.siege.tend()
            time.sleep(0.005)
        return False

    def _attach(self) -> subprocess.Popen[bytes]:
        assert self.in_call is not None
        pid = self.siege.running[STAGE_SHARD].pid
        command = strace.attached(pid, self.in_call.call, self.in_call.when, self.in_call.log, follow=False)
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def _kill_another(self) -> None:
        found = wait_until(lambda: self.ended() or self.siege.victim("worker"), 60.0, "a worker to kill")
        if isinstance(found, tuple):
            kill(found[0])
            self.instead = found[1]

    def _wait_for_the_end(self, limit_s: float) -> None:
        self.scenario.striker.forget()

        def over() -> bool:
            self.siege.tend()
            return self.scenario.is_over()

        wait_until(over, limit_s, "the end of every file")
        self._over = True
        codes = self.siege.stop()
        assert set(codes.values()) <= ENDS, codes
