"""What saving costs a training of 100 M parameters with AdamW, beside dd of the same bytes (the scale)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.checkpoint_run import SHAPE
from benchlib.runner import Bar, Measures, Scenario, Series
from stoker.training.model.transformer import Model

INTERVAL_S = 60.0
MOST_OF_DD = 1.5
BYTES_A_PARAMETER = 12
EMA_BYTES = 1.01 * 16 / 12  # of a save, x one without an average


class CheckpointScenario(Scenario):
    """A save beside training with a core free: the stall, the slowed steps of a minute, the time to the seal.

    The same with an average of the weights. It takes 4 GB of memory and of the disk of TMPDIR.
    """

    name = "checkpoint"
    repeats = 3
    limits: ClassVar[Measures] = {"stall_s": 0.2, "slowed_s": 0.01 * INTERVAL_S}

    def prepare(self, directory: Path) -> None:
        parameters = sum(parameter.numel() for parameter in Model(SHAPE).parameters())
        self.source = Path("/dev/shm") / f"stoker-bench-{os.getpid()}"
        self.size = parameters * BYTES_A_PARAMETER

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        with_ema = {"with an average": lambda directory: self._train(directory, "ema")}
        return {"dd": self._dd, "sealer": self._train, **with_ema}

    def judge(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
        ratio = series["sealer"]["sealed_s"].ratio
        if ratio is None or ratio > MOST_OF_DD:
            yield f"sealer: sealed in {ratio} x dd, at most {MOST_OF_DD}"

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        plain, averaged = (series[name] for name in ("sealer", "with an average"))
        for measure, most in (("saved_bytes", 1.0), ("sealed_s", MOST_OF_DD)):
            ratio = averaged[measure].median / plain[measure].median
            yield Bar(f"with an average: {measure}, x without", ratio, most * EMA_BYTES)

    def _dd(self, directory: Path) -> Measures:
        target = directory / "dd"
        try:
            with self.source.open("wb") as stream:
                for _ in range(self.size >> 20):
                    stream.write(os.urandom(1 << 20))
            began = time.monotonic()
            flags = ["bs=4M", "oflag=direct", "conv=fsync", "status=none"]
            subprocess.run(["dd", f"if={self.source}", f"of={target}", *flags], check=True)
            return {"sealed_s": time.monotonic() - began}
        finally:
            self.source.unlink()
            target.unlink(missing_ok=True)

    def _train(self, directory: Path, *arguments: str) -> Measures:
        place = directory / "checkpoints"
        place.mkdir()
        command = [sys.executable, "-m", "benchlib.checkpoint_run", str(place), *arguments]
        try:
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        finally:
            shutil.rmtree(place)
        figures: Measures = json.loads(done.stdout)
        return figures
