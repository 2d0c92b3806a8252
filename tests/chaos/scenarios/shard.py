"""The stage-shard loop: it and its workers die, mostly inside system calls; the sets come out the same.

The daemon lives on from kill to kill and is started again when it is down. The sets are held against a
build in peace, one by one, slowly; of many files also against one under other names, in another order, by
three workers at once.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from chaos.besieged import BesiegedScenario, Place
from stoker.store.layout import STAGE_SHARD, WarmLayout
from support.audits import audit_of
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.siege import Siege
from support.small_disk import leftovers
from support.striking import Blow, Striker

MANY, ROWS, ROW_GROUP = 8, 120, 30
SEALING = ("seal_hash", "seal_manifest", "publish")
# Who dies inside a call, and where in its work; drawn evenly from those who have something to do.
PHASES = ("task", "check_engine", "open", "commit", "commit", *SEALING, *SEALING)
BUILD = tuple(("build", phase) for phase in PHASES)
DAEMON = ((STAGE_SHARD, "start"), (STAGE_SHARD, ""))
WORKERS = {
    "stage": "stoker.corpus.staging.stage_worker",
    "lister": "stoker.corpus.staging.lister_worker",
    "sweep": "stoker.corpus.staging.cleanup_worker",
    "quarantine": "stoker.corpus.quarantine.quarantine_worker",
    "build": "stoker.shards.build.build_worker",
    "move": "stoker.shards.move.move_worker",
}
# How often a call is made from there on, where that is less than what the strikes are drawn from.
AT_MOST = {("publish", "rename"): 1, ("task", "rename"): 1}
ONLY_WRITE = ("lister",)


class ShardScenario(BesiegedScenario):
    """The stage-shard loop and its workers, several at once, killed in writes, syncs, renames and seals."""

    name = "shard"
    targets = ("build", "any", "stage_shard", "build", "lister")
    calls: ClassVar = {"fsync": 4, "rename": 3, "unlink": 2, "write": 6}
    timed_every = 3
    longest_s = 1.5
    limit_s = 180.0
    daemon = STAGE_SHARD

    def __init__(self, files: int = MANY) -> None:
        self._files, self._round = files, 0
        self._ground: Ground | None = None

    def start(self, directory: Path) -> None:
        self._round += 1
        if self._ground is None:
            self._ground = Ground(directory.parent / "ground", self._files)
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

    def is_over(self) -> bool:
        data = self.data
        states = data.states()
        ended = len(states) == self._files + 2 and set(states.values()) <= self.endings()
        return ended and not leftovers(data)[: 0 if data.pipeline.shard.release == "never" else None]

    def places(self) -> list[Place]:
        states = self.data.states()
        seen = len(states) < self._files + 2 or "seen" in states.values()
        busy = {
            "stage": seen,
            "quarantine": states.get("damaged.parquet") != "quarantined",
            "sweep": self.data.pipeline.shard.release != "never",
            "move": self.data.pipeline.warm is not None,
            "lister": True,
        }
        compares = self.data.pipeline.tokenizer.engine != "tokenizers"
        build = [place for place in BUILD if compares or place[1] != "check_engine"]
        return [*build, *DAEMON, *((name, "task") for name, is_busy in busy.items() if is_busy)]

    def blow(self, place: Place, call: str, when: int) -> Blow:
        name, point = place
        module = WORKERS.get(name, f"stokerd.{name}")
        if name in ONLY_WRITE:
            call, when = "write", min(when, 2)
        most = 1 if call == "unlink" else AT_MOST.get((point, call), when)
        return Blow(module, point, call, min(when, most))

    def endings(self) -> set[str]:
        """In which states a source may be at the end."""
        last = {"never": "synced" if self.data.pipeline.warm else "proven"}
        return {last.get(self.data.pipeline.shard.release, "released"), "duplicate", "quarantined"}

    def check(self) -> None:
        data, ground = self.data, self._ground
        assert ground is not None
        states = Counter(data.states().values())
        assert (states["duplicate"], states["quarantined"], states.total()) == (1, 1, self._files + 2), states
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

    def __init__(self, home: Path, files: int) -> None:
        self.made = make_pipeline(
            home, shard__workers=1, tokenizer__engine="tokenizers", shard__commit={"every": "1h"}
        )
        for number in range(files):
            write_fineweb(self.made.source / f"{number}.parquet", ROWS, seed=number, row_group=ROW_GROUP)
        write_fineweb(self.made.source / "1-twin.parquet", ROWS, seed=1, row_group=ROW_GROUP)
        flip_page(write_fineweb(self.made.source / "damaged.parquet", ROWS, seed=99, row_group=ROW_GROUP), 2)
        self.made.receive()
        in_peace = self.copy(home / "in-peace")
        assert (ended := in_peace.once(STAGE_SHARD)).returncode == 0, ended.stderr
        self.sets = in_peace.sets()
        assert len(self.sets) == files
        if files == MANY:
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
