"""What the trainer costs besides its arithmetic: the memory of a step, the time to the first one."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.start import cpu_s
from benchlib.train_run import PreparedRun, Workload

VOCAB = 50257
_ONE = {"steps": 10, "global_batch": 1, "micro_batch": 1, "seq_len": 1024}
_EIGHT = {"steps": 10, "global_batch": 8, "micro_batch": 8, "seq_len": 256}
MEMORY = {
    "small": {**_ONE, "model": {"layers": 2, "width": 256, "heads": 4, "ffn_width": 688}},
    "8_layers": {**_EIGHT, "model": {"layers": 8, "width": 256, "heads": 8, "ffn_width": 688}},
    "124m": {**_ONE, "model": "124m"},
}
JUDGED = ("small", "8_layers")  # with more layers, gradients and activations outweigh any logits
DEMO = Workload(
    {"steps": 10, "model": "demo", "seq_len": 256, "global_batch": 8, "deterministic": True}, 4096
)
HELDOUT_WINDOWS = 64  # as etc/demo.yaml has it; a new run evaluates them before its first step
LONGEST_S = 60.0
STEP = re.compile(rb"^STEP=(\d+)$", re.M)


class TrainMemoryScenario(Scenario):
    """The memory of a step at vocabulary 50,257: whole logits (nanoGPT's loop, the scale), the trainer."""

    name = "train-memory"
    repeats = 3

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            which: lambda directory, which=which: {
                f"{name}_bytes": _step_memory(which, directory / "run", train)
                for name, train in MEMORY.items()
            }
            for which in ("nanogpt", "stoker")
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        for name in JUDGED:
            ratio = series["stoker"][f"{name}_bytes"].ratio
            assert ratio is not None
            yield Bar(f"{name}: a step's memory, x whole logits", ratio, 0.5)


class TrainLaunchScenario(Scenario):
    """Launch to first step of the demo's model: `import torch` alone (the scale), a new run, one resumed."""

    name = "train-launch"
    repeats = 7

    def prepare(self, directory: Path) -> None:
        self.run = PreparedRun(directory / "run", DEMO, DEMO.made_up(200), DEMO.made_up(HELDOUT_WINDOWS))
        environment = self.run.launch(until=1)
        subprocess.run([sys.executable, "-m", "stoker.training.trainer"], env=environment, check=True)
        (self.checkpoint,) = self.run.layout.checkpoints.iterdir()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "import torch": lambda _: _bare(),
            "new run": lambda _: _first_step(self.run, None),
            "resumed": lambda _: _first_step(self.run, self.checkpoint),
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        for name in ("new run", "resumed"):
            ratio = series[name]["first_step_s"].ratio
            assert ratio is not None
            yield Bar(f"{name}: launch to first step, x import torch", ratio, 2.5)


def _memory(which: str, directory: Path) -> Measures:
    return {f"{name}_bytes": _step_memory(which, directory / "run", train) for name, train in MEMORY.items()}


def _step_memory(which: str, home: Path, train: Mapping[str, object]) -> float:
    command = [sys.executable, "-m", "benchlib.train_memory", which, str(home), json.dumps(train), str(VOCAB)]
    try:
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        shutil.rmtree(home)


def _bare() -> Measures:
    began = time.monotonic()
    before = os.times()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"first_step_s": time.monotonic() - began, "first_step_cpu_s": cpu}


def _first_step(run: PreparedRun, resume: Path | None) -> Measures:
    """Launches the real trainer; RuntimeError when it tells of no step."""
    run.layout.metrics.unlink(missing_ok=True)
    environment = run.launch(resume=resume)
    address = Path(environment["STOKER_NOTIFY_SOCKET"])
    address.unlink(missing_ok=True)
    before = 0 if resume is None else 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(address))
        inbox.settimeout(LONGEST_S)
        began = time.monotonic()
        trainer = subprocess.Popen([sys.executable, "-m", "stoker.training.trainer"], env=environment)
        try:
            while int((STEP.search(inbox.recv(65536)) or [0, before])[1]) <= before:
                pass
            return {"first_step_s": time.monotonic() - began, "first_step_cpu_s": cpu_s(trainer.pid)}
        except TimeoutError as problem:
            raise RuntimeError(f"the trainer told of no step within {LONGEST_S:g} s") from problem
        finally:
            trainer.kill()
            trainer.wait()
