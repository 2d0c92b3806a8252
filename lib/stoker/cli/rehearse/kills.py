"""The rehearsal as it runs: what `stoker run` does, while its processes are killed one after the other."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.cli.pipeline.events import Daemons, Output
from stoker.cli.pipeline.run import Foreground, is_current
from stoker.cli.rehearse.figures import Measured, at_end
from stoker.cli.rehearse.scratch import Scratch
from stoker.config.schema import Pipeline
from stoker.kit.events import EventTail
from stoker.kit.process import ProcessId, children_tree, family, signal_process
from stoker.observe.processes import GUARD, TRAINER
from stoker.store.files import tree_bytes
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.supervise.run.step_rows import rows_of

STEPS = 20  # in peace at the end, by which the speed is told: a launch's first ones are slow
ROW_BYTES = 1 << 15  # of the training log: its last rows
OF_DATA, OF_TRAINER = (STAGE_SHARD, DOWNLOAD_WATCHDOG), (TRAINER, GUARD)
VICTIMS = (*OF_DATA, *OF_TRAINER, TRAIN_SUPERVISOR)


class Rehearsal(Foreground):
    """What happens, and how long it takes: seen from the files, at each turn of the loop."""

    def __init__(self, scratch: Scratch, output: Output, seconds: float) -> None:
        super().__init__(scratch.pipeline, output, until_done=True)
        self.scratch, self.give_up = scratch, time.monotonic() + seconds
        self.layout = scratch.pipeline.layout.run(scratch.pipeline.train.run)
        self.tail = EventTail(scratch.pipeline.layout)
        self.resumed_from = list[int]()  # the step, for each launch
        self.saves_at = dict[int, float]()  # by step, when it was seen first
        self.proven_step, self.proofs_s = 0, list[float]()
        self.kills = dict.fromkeys(VICTIMS, "")
        self.script = self.killing()

    def tend(self, status: Daemons) -> None:
        """Goes on with the killing once a condition holds; stops at its end, or when the time is over."""
        super().tend(status)
        self.daemons, now = status, time.monotonic()
        for save in self.layout.checkpoints.glob("*step-*"):  # begun or sealed, the step is the last word
            self.saves_at.setdefault(int(save.name.rpartition("-")[2]), now)
        for event in self.tail.new():
            if event["event"] == "trainer_launched":
                self.resumed_from.append(event["resume_step"])
            if event["event"] == "checkpoint_proven":
                self.proven_step = event["step"]
                self.proofs_s.append(now - self.saves_at.get(self.proven_step, now))
        if self.stopping is None and (now >= self.give_up or next(self.script, self) is self):
            self.say("info", "stopping")
            self.stop(0)

    def stop(self, code: int) -> None:
        """Kills all: nothing that they could still save is of use."""
        super().stop(code)
        for each in children_tree(os.getpid()):
            signal_process(each, signal.SIGKILL)

    def killing(self) -> Iterator[None]:
        """Kills each process once there is something to lose, then lets it train; yields while it waits."""
        for what in VICTIMS:
            saves = 0 if what in OF_DATA else len(self.proofs_s)
            while not (len(self.proofs_s) > saves and self.last_row()["step"] > self.proven_step):
                yield
            while not (process := self.victim(what)):
                yield
            launches, step = len(self.resumed_from), self.last_row()["step"]
            signal_process(process, signal.SIGKILL)
            began = time.monotonic()
            self.say("info", f"killed: {what} (pid {process.pid}) at step {step}")
            if what in OF_DATA:
                while self.victim(what) in (None, process):
                    yield
                self.kills[what] = f"at work again {time.monotonic() - began:.1f} s after its kill"
                continue
            while len(self.resumed_from) == launches:
                yield
            before, resumed = self.last_row(), self.resumed_from[-1]
            # The log may still end with steps that the trainer, when it has loaded, takes out of it.
            while self.last_row() == before or self.last_row()["step"] <= resumed:
                yield
            then = f"first step {time.monotonic() - began:.1f} s after its kill"
            self.kills[what] = f"{then}, from step {resumed}: {max(0, step - resumed)} made again"
        last_step = self.last_row()["step"] + STEPS
        while self.last_row()["step"] < last_step:
            yield

    def victim(self, what: str) -> ProcessId | None:
        """Returns the process of that role, if it is at work."""
        about = self.daemons[TRAIN_SUPERVISOR if what in OF_TRAINER else what]
        if not is_current(about) or not about["body"].get("ready"):
            return None
        below = family(os.getpid())
        pid = about["body"]["trainer_pid"] if what in OF_TRAINER else about["pid"]
        if what == GUARD:
            pid = next((parent for each, parent in below.items() if each.pid == pid), None)
        return next((each for each in below if each.pid == pid), None)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the newest rows of steps."""
        return list(rows_of(self.layout.metrics, b'"loss"', tail_bytes=ROW_BYTES))

    def last_row(self) -> dict[str, Any]:
        return (self.rows() or [{"step": 0}])[-1]

    def measured(self, pipeline: Pipeline) -> Measured:
        """Returns what was seen, and what the files tell once nobody writes them."""
        scratch, rows, needs = self.scratch, self.rows(), Counter[Path]()
        rates = [row["tokens_per_s"] for row in rows[-STEPS:]]
        stalls = [row["save_stall_s"] for row in rows if "save_stall_s" in row]
        if self.proofs_s:
            shards = scratch.pipeline.hot_layout.shards(pipeline.dataset.name)
            sets = round(tree_bytes(shards) / scratch.share)
            checkpoint = max(map(tree_bytes, self.layout.checkpoints.glob("step-*")))
            sizes = at_end(pipeline, sets=sets, parquet=scratch.source_bytes, checkpoint=checkpoint)
            for key, size in sizes.items():
                needs[next(filter(Path.is_mount, scratch.homes[key].parents))] += size
        disks = [(str(disk), size, shutil.disk_usage(disk).total) for disk, size in needs.items()]
        return Measured(self.kills, rates, stalls, self.proofs_s, disks)
