"""Runs the real train supervisor over the built-in trainer, and looks at both from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from benchlib import text
from stoker.config.load import load_pipeline
from stoker.kit.process import ProcessId, processes_with_environment
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.run.launch_record import TRAINER

LONGEST_S = 300.0
POLL_S = 0.005  # a look at a file's end costs a hundredth of it
SCRIPTS = Path(sys.executable).parent
TEXT_BYTES = 12_000_000
TRAIN: Mapping[str, Any] = {
    "steps": 10**6,
    "model": "demo",
    "seq_len": 256,
    "global_batch": 4,
    "start_when": {"tokens": 1000},
    "evaluate": {"every_steps": None},
    "checkpoint": {"every": None, "every_steps": 10**6},
}
Found = TypeVar("Found")


class Supervised:
    """One pipeline whose shard sets are ready; `train` may be changed between two supervisors."""

    def __init__(self, home: Path) -> None:
        """Makes the data. Raises RuntimeError where that fails."""
        self.home, self._pid = home, 0
        (home / "source").mkdir(parents=True)
        text.write_prose(home / "source" / "prose.parquet", TEXT_BYTES, seed=1)
        self.set_up({})
        for daemon in ("stoker-download-watchdog", "stoker-stage-shard"):
            done = subprocess.run([SCRIPTS / daemon, self.file, "--once"], capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{daemon} ended with {done.returncode}:\n{done.stderr.decode()[-2000:]}")

    def set_up(self, train: Mapping[str, Any], run: str = "main") -> None:
        """Sets what the next supervisor trains."""
        body = {
            "name": "bench",
            "state": str(self.home / "state"),
            "hot": str(self.home / "hot"),
            "dataset": {"name": "prose", "source": {"kind": "folder", "path": str(self.home / "source")}},
            "stage": {"settle": "0s", "free_floor": "1MiB"},
            "tokenizer": {"train": {"vocab_size": 4096, "train_bytes": "4MB"}},
            "shard": {"release": "never"},
            "train": {**TRAIN, **train, "run": run},
            "supervise": {"backoff": {"first": "1s", "most": "1s"}},
            "metrics": {"ports": {"download": 0, "shard": 0, "train": 0}},
        }
        self.file = self.home / "bench.yaml"
        self.file.write_text(json.dumps(body))
        self.pipeline = load_pipeline(self.file)
        self.run = self.pipeline.layout.run(run)

    @contextmanager
    def supervisor(self) -> Iterator[int]:
        """Runs the supervisor, whose pid is given, until the block ends; its trainer saves and ends."""
        with (self.home / "supervisor.err").open("ab") as errors:
            command = [SCRIPTS / "stoker-train-supervisor", self.file]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self._pid = process.pid
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(LONGEST_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def wait(self, look: Callable[[], Found | None], what: str) -> Found:
        """Looks until there is something. Raises RuntimeError after five minutes."""
        give_up = time.monotonic() + LONGEST_S
        while not (found := look()):
            if time.monotonic() > give_up:
                said = (self.home / "supervisor.err").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"no {what} within {LONGEST_S:g} s; the supervisor said:\n{said}")
            time.sleep(POLL_S)
        return found

    def step(self) -> int:
        """The last step in the training log."""
        with suppress(OSError), self.run.metrics.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            for line in reversed(log.read().split(b"\n")[:-1]):
                with suppress(ValueError):
                    return int(json.loads(line)["step"])
        return 0

    def wait_for_step(self, step: int) -> float:
        """Waits until the log has the step; returns the monotonic time."""
        self.wait(lambda: self.step() >= step, f"step {step}")
        return time.monotonic()

    def sealed(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.run.checkpoints.glob("step-*"))

    def forget_steps(self) -> None:
        """Removes the training log while no trainer runs: its first row is then of the next one."""
        self.run.metrics.unlink()

    def kill(self, trainer: ProcessId) -> float:
        """Ends a trainer at once, and forgets its steps; returns the monotonic time."""
        os.kill(trainer.pid, signal.SIGKILL)
        began = time.monotonic()
        self.forget_steps()
        return began

    def wait_for_checkpoint(self) -> None:
        """Waits until one more is proven, and the trainer is some steps further."""
        before = set(self.wait(self.status, "status")["proven"])
        self.wait(lambda: set(self.status()["proven"]) - before, "proven checkpoint")
        self.wait_for_step(self.step() + 2)

    def seconds_of(self, bucket: str) -> float:
        """The run's time in a bucket, as far as the supervisor shows it."""
        return float(self.wait(self.status, "status")["goodput"]["seconds"][bucket])

    def shown(self) -> dict[str, float]:
        """The account of the run's time, and how long the supervisor had run."""
        status = self.wait(self.status, "status")
        goodput = status["goodput"]
        known = {"steps_s": goodput["seconds"]["steps"], "uptime_s": status["uptime_s"]}
        return {**known, "wall_s": goodput["wall_s"], "undecided_s": goodput["undecided_s"]}

    def launch_ends(self) -> list[dict[str, Any]]:
        """The launches that have ended, with where their time went."""
        return [json.loads(line) for line in self.run.runs.read_text().splitlines()]

    def status(self) -> dict[str, Any]:
        """What the supervisor shows, at most some seconds old; {} before it does."""
        try:
            shown: dict[str, Any] = json.loads(self.pipeline.runtime.status(TRAIN_SUPERVISOR).read_bytes())
        except (OSError, ValueError):
            return {}
        return shown if shown["pid"] == self._pid and "proven" in shown else {}

    def trainer(self) -> ProcessId | None:
        """The trainer's process, once it is one and no launcher any more."""
        words = [word.encode() for word in TRAINER[1:]]
        for process in processes_with_environment("STOKER_RUN_DIR", str(self.run.root)):
            with suppress(OSError):
                said = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                if words == [word for word in said[1:4] if word != b"-P"][: len(words)]:
                    return process
        return None

    def environment(self, pid: int) -> dict[str, str]:
        """That of a running process."""
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")[:-1]
        return dict(pair.decode().split("=", 1) for pair in pairs)


def wake_ups(pid: int) -> int:
    """How often the threads of a process went to sleep so far."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):
            found += int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return found


def peak_bytes(pid: int) -> int:
    """The most that was ever resident of a process."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
