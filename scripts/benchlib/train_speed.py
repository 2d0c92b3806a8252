"""The scenario of speed: steps of nanoGPT's loop and of the trainer's over one model, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.train_loops import PlainLoop, StokerLoop, nanogpt_batch
from benchlib.train_run import PreparedRun, Workload

WARM_UP = 2  # steps
MOST_WINDOWS = 2000


class SpeedScenario(Scenario):
    """Both loops have the micro-batch that the trainer has chosen. bfloat16 has no bar."""

    workload: ClassVar[Workload]
    repeats = 21

    def prepare(self, directory: Path) -> None:
        run = self._run(directory, "float32")
        self.loops = [StokerLoop(run), StokerLoop(self._run(directory, "bfloat16"))]
        for loop in self.loops:
            for _ in range(WARM_UP):
                loop.step()
        training = self.loops[0].training
        plain = PlainLoop(training.launch, training.numerics.micro_batch)
        self.steps: dict[str, Callable[[], object]] = {
            "nanogpt": lambda: plain.step(nanogpt_batch(run)),
            "stoker": self.loops[0].step,
            "bfloat16": self.loops[1].step,
        }
        for _ in range(WARM_UP):
            self.steps["nanogpt"]()

    def finish(self) -> None:
        for loop in self.loops:
            loop.end()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {name: lambda _, step=step: self._measured(step) for name, step in self.steps.items()}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        ratio = series["stoker"]["tokens_per_s"].ratio
        assert ratio is not None
        yield Bar("tokens/s, x nanoGPT's", ratio, 1.0, least=True)

    def _run(self, directory: Path, precision: str) -> PreparedRun:
        workload = Workload({**self.workload.train, "precision": precision}, self.workload.vocab)
        return PreparedRun(directory / precision, workload, workload.made_up(MOST_WINDOWS))

    def _measured(self, step: Callable[[], object]) -> Measures:
        began, cpu = time.monotonic(), time.process_time()
        step()
        seconds = time.monotonic() - began
        tokens = self.workload.train["global_batch"] * self.workload.train["seq_len"]
        return {"tokens_per_s": tokens / seconds, "step_cpu_s": time.process_time() - cpu}
