"""The rehearsal as it runs: `stoker run` as a child, whose processes are killed one after the other."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from stoker.checkpoints.format import TEMPORARY, step_of
from stoker.cli.options import one_line
from stoker.cli.pipeline.events import Output
from stoker.cli.pipeline.run import STOP_SIGNALS, Child, is_current
from stoker.cli.rehearse.figures import Measured, at_end
from stoker.cli.rehearse.scratch import Scratch
from stoker.config.schema import Pipeline
from stoker.kit.events import EventTail
from stoker.kit.exec import launch_command, set_child_subreaper
from stoker.kit.process import ProcessId, children_tree, family, reap_strays, signal_process
from stoker.observe.pace import time_left
from stoker.observe.processes import GUARD, TRAINER
from stoker.observe.status import read_status
from stoker.store.errors import StokerError
from stoker.store.files import tree_bytes
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.supervise.outlook import TAIL_BYTES, steps_made
from stoker.supervise.run.step_rows import rows_of

LOOK_S, STOP_S = 0.2, 60.0
STEPS = 20  # in peace at the end, by which the speed is told: a launch's first ones are slow
ROW_BYTES = 1 << 16  # of the training log: its last rows
RUN = "from stoker.cli.main import main; main()"
OF_DATA, OF_TRAINER = (STAGE_SHARD, DOWNLOAD_WATCHDOG), (TRAINER, GUARD)
VICTIMS = (*OF_DATA, *OF_TRAINER, TRAIN_SUPERVISOR)


class TimeUp(Exception):
    """The time of the rehearsal is over."""


@contextlib.contextmanager
def running(scratch: Scratch) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the scratch pipeline; no process of it is left afterwards.

    When this process is killed, the child stops its daemons. It has the locks open, so that a later rehearsal
    removes nothing under them.
    """
    set_child_subreaper()
    file = scratch.pipeline.file
    with file.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            launch_command([sys.executable, "-P", "-c", RUN, "run", str(file), "--until-done", "--quiet"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=scratch.environment,
            pass_fds=scratch.locks,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        began = time.monotonic()
        # A process that waits for a dead disk cannot be killed.
        while (left := children_tree(os.getpid())) and time.monotonic() < began + 2 * STOP_S:
            process.terminate()  # the second time it kills the trainer, whose last steps are of no use
            if time.monotonic() > began + STOP_S or process.poll() is not None:
                for each in left:
                    signal_process(each, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            reap_strays({process.pid})
            time.sleep(LOOK_S / 4)


class Rehearsal:
    """What happens, and how long it takes: seen from the files, a few times a second."""

    def __init__(
        self, scratch: Scratch, process: subprocess.Popen[bytes], output: Output, seconds: float
    ) -> None:
        self.scratch, self.process, self.output = scratch, process, output
        self.give_up = time.monotonic() + seconds
        self.layout = scratch.pipeline.layout.run(scratch.pipeline.train.run)
        self.tail = EventTail(scratch.pipeline.layout)
        self.status: Mapping[str, Mapping[str, Any]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {"trainer_launched": [], "trainer_exited": []}
        self.sealed = dict[str, float]()  # by name, when it was seen first
        self.writing_at: float | None = None
        self.proven_step = 0
        self.seals_s, self.proofs_s = list[float](), list[float]()
        self.kills = dict.fromkeys(VICTIMS, "")

    def run(self) -> None:
        """Kills each process once there is something to lose, then lets it train; until the time is over."""
        with contextlib.suppress(TimeUp):
            for what in VICTIMS:
                self.kills[what] = self.killed(what)
            last_step = self.last_row()["step"] + STEPS
            self.until(lambda: self.last_row().get("step", 0) >= last_step)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits until the condition is true, and returns its value; raises TimeUp after the time."""
        while not (found := condition()):
            if (code := self.process.poll()) is not None:
                words = Child("run", self.scratch.pipeline.file.with_suffix(".log")).last_words()
                click.echo("\n".join(map(one_line, words)), err=True)
                raise click.exceptions.Exit(code or StokerError.exit_code)
            if time.monotonic() >= self.give_up:
                raise TimeUp
            time.sleep(LOOK_S)
            self.look()
        return found

    def look(self) -> None:
        """Takes in what is new on disk, and shows it."""
        now = time.monotonic()
        self.status = read_status(self.scratch.pipeline.layout)
        self.output.refresh(now, self.status)
        places = list(self.layout.checkpoints.glob("*step-*"))
        for name in {one.name for one in places if step_of(one.name) is not None} - self.sealed.keys():
            self.sealed[name] = now
            self.seals_s.append(now - (self.writing_at or now - LOOK_S))
        is_writing = any(one.name.startswith(TEMPORARY) for one in places)
        self.writing_at = (self.writing_at or now) if is_writing else None
        for event in self.tail.new():
            self.events.setdefault(event["event"], []).append(event)
            if event["event"] == "checkpoint_proven":
                self.proven_step = event["step"]
                self.proofs_s.append(now - self.sealed.get(event["path"].rpartition("/")[2], now))

    def killed(self, what: str) -> str:
        """Kills a process after progress: another checkpoint, and a step beyond it; returns what followed."""
        saves = 0 if what in OF_DATA else len(self.proofs_s)
        self.until(lambda: len(self.proofs_s) > saves and self.last_row().get("step", 0) > self.proven_step)
        process: ProcessId = self.until(lambda: self.victim(what))
        launched, exited = self.events["trainer_launched"], self.events["trainer_exited"]
        launches, exits, step = len(launched), len(exited), self.last_row()["step"]
        signal_process(process, signal.SIGKILL)
        began = time.monotonic()
        self.output.say("info", f"killed: {what} (pid {process.pid}) at step {step}")
        if what in OF_DATA:
            self.until(lambda: (back := self.victim(what)) and back != process)
            return f"at work again {time.monotonic() - began:.1f} s after its kill"
        self.until(lambda: len(launched) > launches)
        before, resumed = self.last_row(), launched[-1]["resume_step"]
        # The log may still end with steps that the trainer, when it has loaded, takes out of it.
        self.until(lambda: (row := self.last_row()) != before and row.get("step", 0) > resumed)
        how = f" ({exited[-1]['exit_class']})" if len(exited) > exits else ""
        then = f"first step {time.monotonic() - began:.1f} s after its kill{how}"
        return f"{then}, from step {resumed}: {max(0, step - resumed)} made again"

    def victim(self, what: str) -> ProcessId | None:
        """Returns the process of that role, if it is at work."""
        about = self.status.get(TRAIN_SUPERVISOR if what in OF_TRAINER else what)
        if about is None or not is_current(about) or not about["body"].get("ready"):
            return None
        below = family(os.getpid())
        pid = about["body"]["trainer_pid"] if what in OF_TRAINER else about["pid"]
        if what == GUARD:
            pid = next((parent for each, parent in below.items() if each.pid == pid), None)
        return next((each for each in below if each.pid == pid), None)

    def last_row(self) -> dict[str, Any]:
        """Returns the newest row of a step; {} where there is none."""
        rows = deque(rows_of(self.layout.metrics, b'"loss"', tail_bytes=ROW_BYTES), maxlen=1)
        return rows[0] if rows else {}

    def measured(self, pipeline: Pipeline) -> Measured:
        """Returns what was seen, and what the files tell once nobody writes them."""
        scratch, needs = self.scratch, Counter[Path]()
        rows = list(rows_of(self.layout.metrics, b'"loss"', tail_bytes=TAIL_BYTES))
        rates = [row["tokens_per_s"] for row in rows[-STEPS:] if row.get("tokens_per_s")]
        stalls = [row["save_stall_s"] for row in rows if "save_stall_s" in row]
        left = time_left(steps_made(scratch.pipeline), pipeline.train.horizon, time.time())
        if (sets := scratch.pipeline.hot_layout.shards(pipeline.dataset.name)).is_dir() and self.sealed:
            checkpoint = max(map(tree_bytes, self.layout.checkpoints.glob("step-*")), default=0)
            whole = round(tree_bytes(sets) / scratch.share)
            sizes = at_end(pipeline, sets=whole, parquet=scratch.source_bytes, checkpoint=checkpoint)
            for key, size in sizes.items():
                needs[next(filter(Path.is_mount, scratch.homes[key].parents))] += size
        disks = [(str(disk), size, *shutil.disk_usage(disk)[::2]) for disk, size in needs.items()]
        return Measured(self.kills, rates, stalls, self.seals_s, self.proofs_s, left, disks)
