"""What an average of the weights costs a step of 100 M parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.train_loops import StokerLoop
from benchlib.train_run import PreparedRun, Workload

MODEL = {"layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn_width": 2048}
VOCAB = 16384
TRAIN = {
    **{"model": MODEL, "steps": 10_000, "seq_len": 512, "global_batch": 4, "micro_batch": 4},
    "ema": {"decay": 0.999, "every": 1, "from_step": 0},
}
MOST_STEPS = 50


class TrainEmaScenario(Scenario):
    """Steps of 97.5 M parameters over 2,048 tokens in turns: without an average (the scale), and with one."""

    name = "train-ema"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        workload = Workload(TRAIN, VOCAB)
        windows = MOST_STEPS * TRAIN["global_batch"]
        self.loop = StokerLoop(PreparedRun(directory / "run", workload, workload.made_up(windows)))
        self.average = self.loop.training.average
        assert self.average is not None
        self.update, self.update_cpu_s = self.average.update, 0.0
        self.average.update = self._update  # type: ignore[method-assign]
        self.loop.step()

    def finish(self) -> None:
        self.loop.end()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {"without": lambda _: self._step(), "ema": lambda _: self._step(averages=True)}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        update, step = series["ema"]["update_cpu_s"].median, series["without"]["step_cpu_s"].median
        yield Bar("CPU seconds of the average's update, of a step's", update / step, 0.015)

    def _step(self, *, averages: bool = False) -> Measures:
        self.loop.training.average = self.average if averages else None
        began, cpu, self.update_cpu_s = time.monotonic(), time.process_time(), 0.0
        self.loop.step()
        figures = {"step_s": time.monotonic() - began, "step_cpu_s": time.process_time() - cpu}
        return {**figures, "update_cpu_s": self.update_cpu_s} if averages else figures

    def _update(self, *arguments: object) -> None:
        began = time.process_time()
        self.update(*arguments)  # type: ignore[arg-type]
        self.update_cpu_s += time.process_time() - began
