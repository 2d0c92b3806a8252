"""Disks that fill and drain under the stage-shard loop: it pauses and says so, never exits, and goes on.

Hot is a tmpfs that holds a third of the sets. Somebody else fills it, and then the disk of the state
directory, until the loop says so; then takes their last byte and gives room back at seeded moments. Sets go
to warm and leave hot meanwhile. Kills come on top. In the end nobody disturbs, and everything comes right by
itself. Needs mounts of its own.
"""

from __future__ import annotations

import signal
import time
from typing import Any, ClassVar

from chaos.driver import Launch, Scenario
from chaos.job import Job
from stoker.store.layout import STAGE_SHARD, WarmLayout
from support.audits import audit_of
from support.filling import Filler
from support.mounts import mount_small
from support.pipelines import make_pipeline
from support.siege import Siege
from support.small_disk import MIB, leftovers, write_letters
from support.waiting import wait_until

STATE = 32 * MIB
HOT_IS_FULL, STATE_IS_FULL = {"disk_full", "disk_short"}, {"state_disk_full", "state_unwritable"}
LETTERS_A_SET = 2_000_000  # some 4.2 MB of set from 2 MB of parquet


class FullDiskScenario(Scenario):
    """Hot, 64 MB, and the state disk fill and drain while sets are built, copied to warm and leave."""

    name = "full-disk"
    mounts = True
    hot: ClassVar[int] = 64 * MIB
    files: ClassVar[int] = 45
    at_least_s: ClassVar[float] = 60.0  # how long disks fill and drain at least
    targets = ("stage_shard", "worker", "build", "worker")
    longest_s = 8.0
    limit_s = 600.0

    siege: Siege | None = None
    _round = 0

    def start(self, directory: Any) -> None:
        self._round += 1
        for name, size in (("hot", self.hot), ("state", STATE)):
            mount_small(directory / name, size)
        self.data = make_pipeline(
            directory,
            warm=str(directory / "warm"),
            shard={
                **{"val_ratio": 0.1, "workers": 2, "release": "after_sync"},
                "commit": {"every": "0.2s", "bytes": "256KiB"},
            },
            evict={"target_free": f"{self.hot // 2}B", "keep_hot_sets": 0},
            stage={"settle": "0s", "free_floor": "1MiB", "queue_files": 3, "queue_bytes": "8MiB"},
            tokenizer={"train": {"vocab_size": 257, "train_bytes": "100KB"}},
        )
        for number in range(self.files):
            write_letters(self.data.source / f"{number:04d}.parquet", LETTERS_A_SET, number)
        self.data.receive()
        self.siege = Siege(self.data, (STAGE_SHARD,), never_exits=True)
        self.seen: set[str] = set()  # what the status gave as reasons to pause
        self.hot_disk, self.state_disk = directory / "hot", directory / "state"
        self.filler = Filler([self.hot_disk, self.hot_disk, self.state_disk], self._round)
        self.filler.leave(self.hot_disk, 0.02)
        self._began = 0.0  # since when disks fill and drain by chance
        self._waits_for = "hot"

    def step(self, launch: Launch) -> Job:
        return FullDiskJob(self)

    def tend(self) -> bool:
        """Keep the loop up and listen to it; whether everything is done."""
        assert self.siege is not None
        self.siege.tend()
        self.seen.add(self.data.status().get("trouble", "").split(":")[0])
        if self._waits_for:
            self._be_full_until_it_is_said()
        elif self.filler.is_alive() and time.monotonic() > self._began + self.at_least_s and self.last:
            self.filler.stop()
        states = list(self.data.states().values())
        return states == ["released"] * self.files and not self._waits_for and not self.filler.is_alive()

    def _be_full_until_it_is_said(self) -> None:
        """First hot and then the state disk are full for as long as it takes; then chance has its way."""
        events = {event["event"] for event in self.data.events(STAGE_SHARD)}
        if self._waits_for == "hot" and events & HOT_IS_FULL:
            self.filler.leave(self.hot_disk, 1.0)
            self.filler.leave(self.state_disk, 0.0)
            self._waits_for = "state"
        elif self._waits_for == "state" and events & STATE_IS_FULL:
            self.filler.leave(self.state_disk, 1.0)
            self._waits_for = ""
            self._began = time.monotonic()
            self.filler.start()

    last = False  # whether no kill is to come any more

    def check(self) -> None:
        data = self.data
        assert not data.reasons(), "a full disk was taken for a bad file"
        assert not (found := [path for path in leftovers(data) if "/.trash" not in path]), found
        audit = audit_of(data.file, deep=True)
        assert audit["balanced"], audit["findings"]
        assert audit["sources"]["proven"] == self.files, audit["sources"]
        assert data.pipeline.warm is not None
        on_warm = list(WarmLayout(data.pipeline.warm).shards("prose").iterdir())
        assert len(on_warm) == self.files
        assert any("pause" in each or "wait" in each for each in self.seen), self.seen

    def abandon(self) -> None:
        if self.siege is not None:
            if self.filler.is_alive():
                self.filler.stop()
            self.siege.end()


class QuickFullDiskScenario(FullDiskScenario):
    """The same with 16 MB and few files, in some seconds."""

    name = "full-disk-quick"
    hot = 24 * MIB
    files = 6
    at_least_s = 3.0
    longest_s = 3.0


class FullDiskJob(Job):
    """From one kill to the next: the daemon is not the job's, it lives on."""

    def __init__(self, scenario: FullDiskScenario) -> None:
        self.scenario = scenario
        self._struck = ""
        self._over = scenario.tend()
        assert scenario.siege is not None
        self.siege = scenario.siege
        self.process = self.siege.running[STAGE_SHARD]

    def pid(self, target: str) -> int | None:
        self._over = self.scenario.tend()
        found = self.siege.victim(target)
        if found is None:
            return None
        self._struck = found[1]
        return found[0]

    def phase(self, target: str) -> str:
        return self._struck

    def ended(self) -> bool:
        return self._over

    def reap(self, limit_s: float, orphans_s: float) -> int:
        if self._struck:
            return -9
        self.scenario.last = True
        wait_until(self.scenario.tend, limit_s, "the end of every file")
        codes = self.siege.stop()
        assert set(codes.values()) <= {0, -signal.SIGTERM}, codes  # the latter before it could listen
        return 0
