"""The built-in trainer's loop beside nanoGPT's over the same model: speed and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.train_loops import PlainLoop, planned_batch, train_whole
from benchlib.train_run import PreparedRun, Workload, byte_text
from benchlib.train_speed import SpeedScenario
from stoker.training.launch import read_launch

BATCH = {"steps": 10_000, "global_batch": 8, "seq_len": 256}

SMALL = {"layers": 2, "width": 64, "heads": 4, "ffn_width": 172}
LOSSES = Workload(
    {
        **{"steps": 200, "global_batch": 8, "seq_len": 128, "micro_batch": 4, "model": SMALL},
        **{"optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 20}},
    },
    256,
)


class TrainDemoScenario(SpeedScenario):
    """A step of nanoGPT's loop (the scale) and of the trainer's on the demo's model; in bfloat16 too."""

    name = "train-demo"
    workload = Workload({**BATCH, "model": "demo"}, 4096)
    repeats = 31


class Train8mScenario(SpeedScenario):
    """The same with 8.4 M parameters and a vocabulary of 8,192."""

    name = "train-8m"
    workload = Workload({**BATCH, "model": {"layers": 8, "width": 256, "heads": 8, "ffn_width": 688}}, 8192)


class Train50kScenario(SpeedScenario):
    """The same with two narrow layers and a vocabulary of 50,257."""

    name = "train-50k"
    workload = Workload({**BATCH, "model": {"layers": 2, "width": 128, "heads": 4, "ffn_width": 344}}, 50257)


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
