"""Trains a model with AdamW on one core less than there are, saves it meanwhile, and tells what that cost."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

from stoker.checkpoints.handover import Sealer
from stoker.checkpoints.saver import Saver
from stoker.checkpoints.seal import tensor_files
from stoker.training.copying import TensorCopier
from stoker.training.ema import Average
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize
from stoker.training.state import model_tensors, named
from stoker.training.steps.device import Compute
from stoker.training.steps.optimizer import AdamW
from stoker.training.steps.step import Stepper

SHAPE = Shape(16384, 64, 12, 768, 12, 12, 2048, 10000.0, 1e-5, True)  # 97.5 M parameters
STEPS = int(os.environ.get("STOKER_BENCH_STEPS", "12"))  # before each save, and after its seal
SAVES = 2
EMA = {"decay": 0.999, "every": 1, "from_step": 0}


def main(directory: Path, with_ema: str = "") -> None:
    """With any second argument the state holds an average of the weights, too."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    model = Model(SHAPE)
    initialize(model, 1)
    optimizer = AdamW(model.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    cpu = Compute(torch.device("cpu"), bf16=False)
    stepper = Stepper(model, optimizer, cpu, clip=1.0)
    copier, sealed = TensorCopier(cpu.device), list[str]()
    sealer = Sealer(directory, "bench")
    saver = Saver(
        sealer, copier, lambda **words: sealed.append(str(words["checkpoint"])), step=0, every=(None, None)
    )
    files = [
        *tensor_files("model", named(model_tensors(model))),
        *tensor_files("optimizer", named(optimizer.tensors())),
    ]
    if with_ema:
        files += tensor_files("ema", named(Average(model, None, EMA).tensors(0)))
    windows = [torch.randint(0, SHAPE.vocab_size, (1, SHAPE.seq_len + 1))]
    steps: list[tuple[float, float]] = []  # begin and end

    def train(count: int) -> None:
        for _ in range(count):
            began = time.monotonic()
            stepper.begin(windows, rate=1e-5).result()
            saver.poll()
            steps.append((began, time.monotonic()))

    train(1)
    saver.prepare(files, body(1))
    train(3)
    del steps[:]
    saves: list[tuple[float, float]] = []  # begin of the copy, and its end
    for number in range(SAVES):
        train(STEPS)
        began = time.monotonic()
        saver.save(files, body(number + 1))
        saves.append((began, time.monotonic()))
        while len(sealed) <= number:
            train(1)
        train(STEPS)
    sealer.end()
    # Heard of after the step that was under way: the rename's own time is the directory's.
    since_boot = time.time() - time.monotonic()
    ends = [(directory / name).stat().st_ctime - since_boot for name in sealed]
    flights = [(began, end) for (began, _), end in zip(saves, ends, strict=True)]
    alone, beside = list[float](), [list[float]() for _ in flights]
    for begin, end in steps:
        flight = next((i for i, (on, off) in enumerate(flights) if begin < off and end > on), None)
        (alone if flight is None else beside[flight]).append(end - begin)
    usual = statistics.median(alone)
    figures = {
        "step_s": usual,
        "stall_s": max(end - begin for begin, end in saves),
        "slowed_s": statistics.mean(sum(times) - usual * len(times) for times in beside),
        "saved_bytes": sum(file.stat().st_size for file in (directory / sealed[-1]).iterdir()),
        "sealed_s": statistics.mean(off - on for on, off in flights),
    }
    print(json.dumps(figures))


def body(step: int) -> dict[str, object]:
    """A body with what readers need."""
    numbers = {"step": step, "tokens": 0, "position": [0, 0], "timeline": 0}
    return {**numbers, "plan_head": "0" * 64}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
