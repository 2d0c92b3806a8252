"""Small pipelines whose data is ready, for tests of the train supervisor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stoker.kit.process import ProcessId, children_tree, processes_with_environment
from stoker.store.layout import TRAIN_SUPERVISOR, RunLayout
from stoker.store.record import read_record
from stoker.supervise.run.metrics_log import TIMED
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.sites import SMALL_TRAINER
from support.waiting import LONG_S, rest, used_s, wait_until

TRAINER = ("-m", "stoker.training.trainer")
SEALER = ("-m", "stoker.checkpoints.sealer")
GUARD = ("-m", "stoker.kit.guard")


@dataclass
class TrainPipeline:
    """A pipeline with finished shard sets; only its train supervisor is run."""

    data: DataPipeline
    with_torch: bool = False  # or with the small trainer, which starts in a tenth of the time
    name: str = "main"  # of the run

    @property
    def run(self) -> RunLayout:
        return self.data.pipeline.layout.run(self.name)

    def start(self) -> Any:
        """Start the supervisor, awaited until READY."""
        with self.trainer():
            return self.data.start(TRAIN_SUPERVISOR)

    def once(self, timeout_s: float = 120.0) -> Any:
        """Run it with --once to its end."""
        with self.trainer():
            return self.data.once(TRAIN_SUPERVISOR, timeout_s)

    def trainer(self) -> contextlib.AbstractContextManager[None]:
        """What is started meanwhile launches this trainer."""
        return on_one_core() if self.with_torch else small_trainer()

    def record(self) -> dict[str, Any]:
        """run.json, {} before there is one."""
        try:
            return read_record(self.run.record)
        except FileNotFoundError:
            return {}

    def events(self, word: str | None = None) -> list[dict[str, Any]]:
        """What the supervisor recorded."""
        return self.data.events(TRAIN_SUPERVISOR, word)

    def checkpoints(self) -> list[str]:
        """The sealed ones by name."""
        return sorted(path.name for path in self.run.checkpoints.glob("step-*"))

    def rows(self) -> list[dict[str, Any]]:
        """The training log without what differs from launch to launch."""
        if not self.run.metrics.exists():
            return []
        rows = [json.loads(line) for line in self.run.metrics.read_bytes().split(b"\n")[:-1]]
        return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]

    def last_step(self) -> int:
        """The last step in the training log."""
        return max((row["step"] for row in self.rows() if "loss" in row), default=0)

    def processes(self) -> list[ProcessId]:
        """Every live process of this run: guards, trainers and what they started."""
        return processes_with_environment("STOKER_RUN_DIR", str(self.run.root))

    def trainers(self) -> list[ProcessId]:
        """The live trainers. A compiler that one of them starts looks like it between fork and exec."""
        found = [process for process in self.processes() if runs(process, TRAINER)]
        below = {child.pid for process in found for child in children_tree(process.pid)}
        return [process for process in found if process.pid not in below]

    def sealers(self) -> list[ProcessId]:
        """The live sealers."""
        return [process for process in self.processes() if runs(process, SEALER)]

    def guards(self) -> list[ProcessId]:
        """The live guards."""
        return [process for process in self.processes() if runs(process, GUARD)]

    def wait_for_step(self, step: int, timeout_s: float = LONG_S) -> ProcessId:
        """Wait until the log has passed a step and a trainer lives; returns that trainer."""
        return wait_until(
            lambda: self.last_step() >= step and self.trainers(), timeout_s, f"training past step {step}"
        )[0]

    def metrics(self) -> dict[tuple[str, ...], float]:
        """What Prometheus would see of the supervisor."""
        return self.data.metrics(TRAIN_SUPERVISOR)

    def tensors(self) -> dict[str, str]:
        """The hashes of the newest checkpoint's weights and optimizer state."""
        newest = self.run.checkpoints / self.checkpoints()[-1]
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(newest.glob("*.safetensors"))
        }


@contextlib.contextmanager
def meanwhile(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Look again and again, in a thread."""
    done = threading.Event()

    def look_on() -> None:
        began = used_s()
        while not done.is_set():
            look()
            began = rest(began, every_s)

    watcher = threading.Thread(target=look_on)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextlib.contextmanager
def never_two(*found: Callable[[], list[ProcessId]]) -> Iterator[None]:
    """Look all the time, and fail when any of these ever found two live processes at once."""
    most = [0] * len(found)

    def look() -> None:
        for number, find in enumerate(found):
            # Found one after the other: the first may have ended before the second began.
            most[number] = max(most[number], sum(process.alive() for process in find()))

    with meanwhile(look, 0.05):
        yield
    assert most == [1] * len(found), f"{most} at once"


def runs(process: ProcessId, module: tuple[str, ...]) -> bool:
    """Whether a process is `python -m module`, by itself or in the launcher's interpreter."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    if "stoker.kit.exec" in words[:4]:
        words = words[words.index("--") + 1 :]
    return tuple(word for word in words[1:4] if word != "-P")[:2] == module


SLOW_ENOUGH = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 4, "ffn_width": 128}


def make_training(template: Path, home: Path, *, with_torch: bool = False, **changes: Any) -> TrainPipeline:
    """A pipeline below `home` with the template's shard sets; deterministic, a checkpoint every 10 steps."""
    settings: dict[str, Any] = {
        "train__steps": 60,
        "train__seq_len": 64,
        "train__global_batch": 4,
        "train__model": SLOW_ENOUGH,
        "train__deterministic": True,
        "train__start_when": {"tokens": "1000", "shard_sets": 1},
        "train__evaluate": {"every_steps": 20, "tokens": 512},
        "train__checkpoint": {"every": None, "every_steps": 10},
        "supervise__stop_time": "20s",
        "supervise__backoff": {"first": "0.1s", "most": "0.2s"},
    }
    pipeline = make_pipeline(home, **{**settings, **changes})
    for part in ("state", "hot"):
        if not (home / part).exists():
            shutil.copytree(template / part, home / part, symlinks=True)
    return TrainPipeline(pipeline, with_torch)


def make_shard_sets(home: Path) -> None:
    """State and hot directories of two files brought all the way to shard sets."""
    data = make_pipeline(home)
    for number in range(2):
        write_fineweb(data.source / f"{number}.parquet", rows=250, seed=number)
    data.drain()


@contextlib.contextmanager
def small_trainer() -> Iterator[None]:
    """What is started meanwhile launches the trainer of small_trainer/unigram.py, which needs no torch."""
    # Behind a test's own site, which runs ours as well.
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SMALL_TRAINER)]))
    with on_one_core(), patch.dict(os.environ, STOKER_TEST_TRAINER="small", PYTHONPATH=path):
        yield


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """The trainer uses as many threads as it has cores: one, or tiny matrices spend their time waiting."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {random.choice(sorted(cores))})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
