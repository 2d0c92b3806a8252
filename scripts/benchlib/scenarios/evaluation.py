"""The suite `heldout` by the harness beside a bare forward loop of transformers (the scale); its memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.release_bundle import seal
from stoker.checkpoints.format import BODY
from stoker.cli.model_weights import held_weights
from stoker.cli.transformers_model import write_model
from stoker.config.load import examples_dir
from stoker.store.direct import hash_file
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model

SHAPE = Shape(8192, 512, 6, 384, 6, 6, 1024, 10000.0, 1e-5, True)  # 14 M parameters, 22 % of them the head
HEARD = "import sys, time, torch; torch.set_num_threads(1); model, suite = sys.argv[1:]\n"
BARE = (
    HEARD
    + """
import json
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
read, lm = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
texts = [json.loads(line)["text"] for line in Path(suite).with_suffix("").joinpath("texts.jsonl").open()]
texts.sort(key=len, reverse=True)
began = time.process_time()
with torch.no_grad():
    for start in range(0, len(texts), 8):
        lm(read(texts[start : start + 8], padding=True, return_tensors="pt")["input_ids"])
print(time.process_time() - began)
"""
)
HARNESS = (
    HEARD
    + """
from pathlib import Path
from stoker.evaluation import harness
from stoker.evaluation.suite import read_suite
run = harness.run_tasks
def timed(*arguments, **named):
    began = time.process_time()
    found = run(*arguments, **named)
    print(time.process_time() - began)
    return found
harness.run_tasks = timed
harness.evaluate(Path(model), read_suite(Path(suite)), "cpu", 8, lambda tokens: None)
"""
)
WORKER = """
import json, re, sys
from pathlib import Path
from stoker.evaluation.worker import main
main(json.loads(sys.argv[1]), lambda *_, **__: None)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
LEAST_SPEED, MOST_BEYOND_MB = 0.8, 700


class EvaluationScenario(Scenario):
    """CPU seconds of the same texts, without imports and loading; the most that a worker had resident."""

    name = "evaluation"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        rng = np.random.default_rng(1)
        model = {
            name: 0.02 * rng.standard_normal(tuple(parameter.shape), np.float32)
            for name, parameter in Model(SHAPE).named_parameters()
        }
        self._weights = sum(values.nbytes for values in model.values())
        self._suite = str(examples_dir() / "suites/heldout.yaml")
        seal(directory / "run", model, shape=SHAPE)
        (self._checkpoint,) = (directory / "run").glob("step-*")
        (directory / "model").mkdir()
        digest = hash_file(self._checkpoint / BODY).sha256
        with held_weights({"kind": "raw", "inputs": [(str(self._checkpoint), digest, 1.0)]}) as weights:
            write_model(weights, directory / "model")

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "forward loop": lambda home: {"cpu_s": _last(BARE, str(home / "model"), self._suite)},
            "harness": lambda home: {"cpu_s": _last(HARNESS, str(home / "model"), self._suite)},
            "worker": self._worker,
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        ratio = series["harness"]["cpu_s"].ratio or float("inf")
        yield Bar("tokens a CPU second beside the loop's", 1 / ratio, LEAST_SPEED, least=True)
        beyond = series["worker"]["rss_bytes"].median - 2 * self._weights
        yield Bar("MB beyond twice the weights", beyond / 1e6, MOST_BEYOND_MB)

    def _worker(self, home: Path) -> Measures:
        task = {
            **{"checkpoint": str(self._checkpoint), "digest": hash_file(self._checkpoint / BODY).sha256},
            **{"suite": self._suite, "scratch": str(home), "samples": str(home / "samples")},
            **{"samples_bytes": 1 << 26, "device": "cpu", "batch": 8, "threads": 1},
            **{"margins": {}, "baseline": None},
        }
        return {"rss_bytes": 1024 * _last(WORKER, json.dumps(task))}


def _last(code: str, *words: str) -> float:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(re.findall(r"^[0-9.]+$", done.stdout, re.MULTILINE)[-1])
