"""A bundle of 500 MB, without the proof by transformers, beside cp and sha256sum of its bytes (the scale)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchlib.runner import Bar, Measures, Scenario, Series
from stoker.checkpoints.seal import CheckpointWriter, Tensor, tensor_files
from stoker.shards.tokenize.tokenizer import train_tokenizer
from stoker.store.files import canonical_json
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model

SHAPE = Shape(32768, 512, 14, 768, 12, 12, 2048, 10000.0, 1e-5, True)  # 124 M parameters
# As a machine without transformers runs it. The kernel's account for a parent would begin with the pages of
# the bench itself, which a child has until it becomes another program.
UNPROVEN = r"""
import re, sys
from pathlib import Path
sys.modules["transformers"] = None
from stoker.cli.main import exit_code
code = exit_code(sys.argv[1:])
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
LEAST_SPEED, MOST_BYTES = 0.5, 10**9


class BundleScenario(Scenario):
    """The whole command, from the proof of a checkpoint to the rename: time, and memory in use at most.

    A checkpoint also holds the optimizer's state, twice the model, which is proven and not bundled.
    """

    name = "release-bundle"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        model = made_up(SHAPE)
        for place, states in (("model", 0), ("state", 2)):
            seal(directory / place, model, states)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "cp, sha256sum": self._copy,
            "bundle": lambda home: _bundle(home, "model"),
            "bundle bfloat16": lambda home: _bundle(home, "model", "--dtype", "bfloat16"),
            "bundle beside a state": lambda home: _bundle(home, "state"),
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        whole = series["bundle"]
        ratio = whole["whole_s"].ratio or float("inf")
        yield Bar("speed beside cp and sha256sum", 1 / ratio, LEAST_SPEED, least=True)
        peak = max(each["rss_bytes"].median for each in series.values() if "rss_bytes" in each)
        yield Bar("memory in bytes", peak, MOST_BYTES)

    def _copy(self, home: Path) -> Measures:
        """The bytes of a bundle, written and made durable, then hashed."""
        made, copy = home / "bytes", home / "copy"
        if not made.exists():
            _run("bundle", home / "model", made)
        shutil.rmtree(copy, ignore_errors=True)
        os.sync()
        began = time.monotonic()
        subprocess.run(["cp", "-r", made, copy], check=True)
        subprocess.run(["sync", *copy.iterdir()], check=True)
        subprocess.run(["sha256sum", *copy.iterdir()], check=True, stdout=subprocess.DEVNULL)
        return {"whole_s": time.monotonic() - began}


def _bundle(home: Path, checkpoint: str, *words: str) -> Measures:
    out = home / "out"
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    began = time.monotonic()
    peak = _run("bundle", home / checkpoint, out, *words)
    return {"whole_s": time.monotonic() - began, "rss_bytes": peak}


def _run(*words: object) -> float:
    """Runs a command; returns the most bytes that it had resident."""
    command = [sys.executable, "-c", UNPROVEN, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return 1024.0 * int(done.stdout.split()[-1])


def made_up(shape: Shape) -> dict[str, np.ndarray]:
    """Returns random parameters of a model, the same each time, by name."""
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal(tuple(parameter.shape), np.float32)
        for name, parameter in Model(shape).named_parameters()
    }


def seal(
    place: Path, model: Mapping[str, np.ndarray], states: int = 0, shape: Shape = SHAPE, step: int = 1
) -> None:
    """Seals a checkpoint of these weights, and of an optimizer with so many states of each."""
    place.mkdir(exist_ok=True)
    tensors = {"model": model}
    if states:
        tensors["optimizer"] = {f"{name}.{n}": each for name, each in model.items() for n in range(states)}
    body = {
        "run": "bench",
        "run_id": "b" * 32,
        "step": step,
        "tokens": 0,
        "position": [0, 0],
        "timeline": 0,
        "plan_head": "0" * 64,
    }
    with CheckpointWriter(place, step, "bench") as writer:
        for kind, each in tensors.items():
            listed = [Tensor(name, "F32", array.shape, array.data.cast("B")) for name, array in each.items()]
            for file, parts in tensor_files(kind, listed):
                writer.add(file, parts)
        writer.add("model.json", [canonical_json({"v": 1, **shape.body()})])
        writer.add("tokenizer.json", [train_tokenizer([["a text to train on, and another text"]], 300)])
        writer.seal(body)
