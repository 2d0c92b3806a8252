"""The suite `heldout` by the harness beside a bare forward loop of transformers (the scale); its memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from benchlib.scenarios.release_bundle import made_up, seal
from stoker.checkpoints.format import BODY
from stoker.cli.model_weights import held_weights
from stoker.cli.transformers_model import write_model
from stoker.config.load import examples_dir
from stoker.store.direct import hash_file
from stoker.training.model.shape import Shape

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
# Steps of training with one thread, a core free; beside them, one evaluation after the other.
STEPS = """
import sys, time, torch
torch.set_num_threads(1)
from benchlib.scenarios.evaluation import SHAPE
from stoker.training.model.transformer import Model, initialize
model = Model(SHAPE)
initialize(model, 1)
optimizer = torch.optim.AdamW(model.parameters())
windows = torch.randint(0, 8192, (8, 257))
def step():
    model.loss_sum(windows).backward()
    optimizer.step()
    optimizer.zero_grad()
step()
began, steps = time.monotonic(), 0
while time.monotonic() - began < float(sys.argv[1]):
    step()
    steps += 1
print(steps / (time.monotonic() - began))
"""
EVALUATING = """
import json, sys
from stoker.evaluation.worker import main
def report(*_, doing="", **__):
    if doing == "evaluate":
        print(doing, flush=True)
while True:
    main(json.loads(sys.argv[1]), report)
"""
STEPS_S = 20
LEAST_SPEED, MOST_BEYOND_MB, LEAST_BESIDE = 0.8, 700, 0.97


class EvaluationScenario(Scenario):
    """CPU seconds of the same texts, without imports and loading; the most that a worker had resident."""

    name = "evaluation"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        model = {name: 0.02 * values for name, values in made_up(SHAPE).items()}
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
            "steps": lambda _: {"steps_per_s": _last(STEPS, str(STEPS_S))},
            "steps beside": self._beside,
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        ratio = series["harness"]["cpu_s"].ratio or float("inf")
        yield Bar("tokens a CPU second beside the loop's", 1 / ratio, LEAST_SPEED, least=True)
        beyond = series["worker"]["rss_bytes"].median - 2 * self._weights
        yield Bar("MB beyond twice the weights", beyond / 1e6, MOST_BEYOND_MB)
        beside = series["steps beside"]["steps_per_s"].median / series["steps"]["steps_per_s"].median
        yield Bar("steps beside an evaluation, x those alone", beside, LEAST_BESIDE, least=True)

    def _worker(self, home: Path) -> Measures:
        return {"rss_bytes": 1024 * _last(WORKER, self._task(home))}

    def _beside(self, home: Path) -> Measures:
        worker = subprocess.Popen(
            [sys.executable, "-c", EVALUATING, self._task(home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise RuntimeError("the evaluation ended")
            return {"steps_per_s": _last(STEPS, str(STEPS_S))}
        finally:
            worker.kill()
            worker.communicate()

    def _task(self, home: Path) -> str:
        task = {
            **{"checkpoint": str(self._checkpoint), "digest": hash_file(self._checkpoint / BODY).sha256},
            **{"suite": self._suite, "scratch": str(home), "samples": str(home / "samples")},
            **{"samples_bytes": 1 << 26, "device": "cpu", "batch": 8, "threads": 1},
            **{"margins": {}, "baseline": None},
        }
        return json.dumps(task)


def _last(code: str, *words: str) -> float:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(re.findall(r"^[0-9.]+$", done.stdout, re.MULTILINE)[-1])
