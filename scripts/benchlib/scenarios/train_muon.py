"""Muon beside AdamW: the held-out loss that each reaches, and what a step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.train_loops import StokerLoop, train_whole
from benchlib.train_run import PreparedRun, Workload, byte_text

OPTIMIZERS = ("adamw", "muon")
RATES = (1e-3, 3e-3, 6e-3)
MODEL = {"layers": 3, "width": 128, "heads": 4, "ffn_width": 344}  # 0.6 M parameters
VOCAB = 256  # bytes
STEPS, WARM_UP, DECAY = 220, 20, 0.4
LEARN = {
    **{"model": MODEL, "steps": STEPS, "seq_len": 128, "global_batch": 8, "micro_batch": 8},
    "schedule": {"name": "wsd", "warmup_steps": WARM_UP, "decay": DECAY, "min_ratio": 0.0},
}
HELDOUT_WINDOWS = 128
LARGE = {"model": MODEL, "steps": 100, "seq_len": 256, "global_batch": 256, "micro_batch": 16}
MOST_STEPS = 40


class TrainMuonScenario(Scenario):
    """Held-out loss after 220 steps on the bytes of the demo's text: AdamW (the scale), Muon, best rate."""

    name = "train-muon"
    repeats = 1

    def prepare(self, directory: Path) -> None:
        windows = HELDOUT_WINDOWS + STEPS * LEARN["global_batch"]
        text = byte_text(windows * (LEARN["seq_len"] + 1))
        held = HELDOUT_WINDOWS * (LEARN["seq_len"] + 1)
        self.heldout, self.text = text[:held], text[held:]

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            name: lambda directory, name=name: self._losses(directory / name, name) for name in OPTIMIZERS
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        adamw, muon = (series[name]["best_loss"].median for name in OPTIMIZERS)
        yield Bar("Muon's held-out loss above AdamW's, in nats", muon - adamw, 0.0)

    def _losses(self, home: Path, optimizer: str) -> Measures:
        losses = {}
        for rate in RATES:
            train = {**LEARN, "optimizer": {"name": optimizer, "lr": rate}}
            with PreparedRun(home, Workload(train, VOCAB), self.text, self.heldout) as run:
                loss = train_whole(run).progress.val_loss
            assert loss is not None
            losses[f"{rate:g}_loss"] = loss
        return {**losses, "best_loss": min(losses.values())}


class TrainMuonStepScenario(Scenario):
    """A step over 64 K tokens with AdamW (the scale) and with Muon."""

    name = "train-muon-step"
    repeats = 5

    def prepare(self, directory: Path) -> None:
        self.loops = {}
        for name in OPTIMIZERS:
            workload = Workload({**LARGE, "optimizer": {"name": name}}, VOCAB)
            run = PreparedRun(directory / name, workload, workload.made_up(256 * MOST_STEPS))
            self.loops[name] = StokerLoop(run)
            self.loops[name].step()

    def finish(self) -> None:
        for loop in self.loops.values():
            loop.end()

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {name: lambda _, loop=loop: _step(loop) for name, loop in self.loops.items()}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        ratio = series["muon"]["step_s"].ratio
        assert ratio is not None
        yield Bar("Muon's step, x AdamW's", ratio, 1.1)


def _step(loop: StokerLoop) -> Measures:
    began, cpu = time.monotonic(), time.process_time()
    loop.step()
    return {"step_s": time.monotonic() - began, "step_cpu_s": time.process_time() - cpu}
