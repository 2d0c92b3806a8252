"""The built-in trainer's loop beside nanoGPT's over the same model: speed and losses."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.train_loops import PlainLoop, StokerLoop, nanogpt_batch, planned_batch, train_whole
from benchlib.train_run import PreparedRun, Workload, byte_text
from stoker.training.launch import read_launch

BATCH = {"steps": 10_000, "global_batch": 8, "seq_len": 256}
SHAPES = {
    "demo": Workload({**BATCH, "model": "demo"}, 4096),
    "8m": Workload({**BATCH, "model": {"layers": 8, "width": 256, "heads": 8, "ffn_width": 688}}, 8192),
    "v50k": Workload({**BATCH, "model": {"layers": 2, "width": 128, "heads": 4, "ffn_width": 344}}, 50257),
}
BF16 = "8m"
WARM_UP = 2  # steps

SMALL = {"layers": 2, "width": 64, "heads": 4, "ffn_width": 172}
LOSSES = Workload(
    {
        **{"steps": 200, "global_batch": 8, "seq_len": 128, "micro_batch": 4, "model": SMALL},
        **{"optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 20}},
    },
    256,
)


class TrainScenario(Scenario):
    """A step of nanoGPT's loop (the scale) and of the trainer's, in turns, on three models; bfloat16 too."""

    name = "train"
    repeats = 21

    def prepare(self, directory: Path) -> None:
        self.loops: list[StokerLoop] = []
        self.steps: dict[str, dict[str, Callable[[], object]]] = {"nanogpt": {}, "stoker": {}, "bfloat16": {}}
        for name, workload in SHAPES.items():
            run = PreparedRun(directory / name, workload, workload.made_up(2000))
            loop = self._loop(run)
            self.steps["stoker"][name] = loop.step
            loop.step()  # the micro-batch is chosen at the latest then
            plain = PlainLoop(loop.training.launch, loop.training.numerics.micro_batch)
            self.steps["nanogpt"][name] = functools.partial(_plain_step, plain, run)
        half = Workload({**SHAPES[BF16].train, "precision": "bfloat16"}, SHAPES[BF16].vocab)
        run = PreparedRun(directory / "bfloat16", half, half.made_up(2000))
        self.steps["bfloat16"][BF16] = self._loop(run).step
        for steps in self.steps.values():
            for step in steps.values():
                for _ in range(WARM_UP):
                    step()

    def finish(self) -> None:
        for loop in self.loops:
            loop.end()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {name: lambda _, steps=steps: _measured(steps) for name, steps in self.steps.items()}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        for name in SHAPES:
            ratio = series["stoker"][f"{name}_tokens_per_s"].ratio
            assert ratio is not None
            yield Bar(f"{name}: tokens/s, x nanoGPT's", ratio, 1.0, least=True)

    def _loop(self, run: PreparedRun) -> StokerLoop:
        loop = StokerLoop(run)
        self.loops.append(loop)
        return loop


class TrainLossesScenario(Scenario):
    """The losses of 200 steps from the same weights over the same windows: nanoGPT's loop, the trainer's."""

    name = "train-losses"
    repeats = 1

    def prepare(self, directory: Path) -> None:
        self.text = byte_text(LOSSES.window * LOSSES.train["steps"] * LOSSES.train["global_batch"])
        self.losses: dict[str, list[float]] = {}

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {"nanogpt": self._nanogpt, "stoker": self._stoker}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        apart = np.abs(np.subtract(self.losses["stoker"], self.losses["nanogpt"])).max()
        yield Bar("largest difference of a step's loss, in nats", float(apart), 1e-4)

    def _nanogpt(self, directory: Path) -> Measures:
        with PreparedRun(directory / "nanogpt", LOSSES, self.text) as run:
            launch = read_launch(run.launch())
            plain = PlainLoop(launch, LOSSES.train["micro_batch"])
            losses = [plain.step(planned_batch(run, number)) for number in range(launch.steps)]
        self.losses["nanogpt"] = losses
        return {"last_loss": losses[-1]}

    def _stoker(self, directory: Path) -> Measures:
        with PreparedRun(directory / "stoker", LOSSES, self.text) as run:
            train_whole(run)
            losses = [row["loss"] for row in run.rows() if "loss" in row]
        self.losses["stoker"] = losses
        return {"last_loss": losses[-1]}


def _measured(steps: Mapping[str, Callable[[], object]]) -> Measures:
    measures: dict[str, float] = {}
    for name, step in steps.items():
        began, cpu = time.monotonic(), time.process_time()
        step()
        seconds = time.monotonic() - began
        tokens = BATCH["global_batch"] * BATCH["seq_len"]
        measures[f"{name}_tokens_per_s"] = tokens / seconds
        measures[f"{name}_step_cpu_s"] = time.process_time() - cpu
    return measures


def _plain_step(plain: PlainLoop, run: PreparedRun) -> None:
    plain.step(nanogpt_batch(run))
