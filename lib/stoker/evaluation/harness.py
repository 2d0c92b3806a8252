"""Runs a suite by lm-evaluation-harness over the directory of a model.

Import it once the environment is set as the worker sets it: the libraries read theirs when they are imported.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import datasets
import yaml
from lm_eval import evaluate as run_tasks
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import set_seed

from stoker.evaluation.samples import Rows, Scored, by_metric
from stoker.evaluation.suite import Suite
from stoker.store.errors import DataError, NonFinite

# A CPU computes short passes as fast, and a pass holds its logits twice: so much they may take, in bytes.
CPU_LOGITS_BYTES = 96 << 20
ANSWER_CHARS = 2000  # of an answer that is kept
FAILED_IDS = 20
RATIOS = ("_per_byte", "_perplexity")  # over lengths; other pairs, as F1's, are no value of one document
OF_LOADING = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    yaml.YAMLError,
)


class ExportLM(HFLM):  # type: ignore[misc]
    """The harness's model over an exported directory, whose tokenizer puts end-of-text before a text."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each whole text; end-of-text stands before it once, not twice.

        The longest come first: the harness sorts by length within a batch alone.
        """
        order = sorted(range(len(requests)), key=lambda place: -len(requests[place].args[0]))
        self.add_bos_token = False  # a special token; None is the tokenizer's own way
        found = super().loglikelihood_rolling([requests[place] for place in order], disable_tqdm)
        self.add_bos_token = None  # type: ignore[assignment]
        return [value for _, value in sorted(zip(order, found, strict=True))]


def load_tasks(suite: Suite) -> dict[str, Any]:
    """Returns the harness's tasks of a suite. Raises DataError where one is unknown or cannot be loaded.

    Changes into the suite's folder: its tasks name their files relative to it.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_caching()  # it would write beside the data
    try:
        if suite.include is not None:
            os.chdir(suite.include)
        manager = TaskManager(include_path=suite.include, include_defaults=False)
        if not set(suite.tasks) <= set(manager.all_tasks):  # else the thousands of the harness's are not read
            manager = TaskManager(include_path=suite.include)
        suite.insist_on_tasks(manager.all_tasks)
        tasks: dict[str, Any] = manager.load(list(suite.tasks))["tasks"]
    except OF_LOADING as error:
        why = f"its tasks cannot be loaded: {error}; correct their files, or bring their data to this machine"
        raise DataError(f"the suite cannot be run: {why}") from error
    return tasks


def evaluate(model: Path, suite: Suite, device: str, batch: int, heard: Callable[[int], None]) -> Scored:
    """Returns what a line of the record says of the scores of a model's directory, and the samples.

    `heard` is called with the tokens so far, after each pass.
    """
    tasks, drawing = load_tasks(suite), suite.decoding
    lm = ExportLM(str(model), device=device, batch_size=batch)
    if device == "cpu":
        logits_bytes = 8 * lm.max_length * lm.model.config.vocab_size
        lm.batch_size_per_gpu = max(1, min(batch, CPU_LOGITS_BYTES // logits_bytes))
    drawn = {"temperature": drawing.temperature, "do_sample": drawing.temperature > 0}
    drawn["max_gen_toks"] = min(drawing.max_tokens, lm.max_length // 2)  # else no prompt fits a short context
    for task in tasks.values():
        task.set_config("num_fewshot", suite.shots)
        task.set_fewshot_seed(suite.seed)
        if task.OUTPUT_TYPE == "generate_until":
            task.set_config("generation_kwargs", drawn, update=True)
    tokens = 0

    def passed(_model: Any, _given: Any, made: Any) -> None:
        nonlocal tokens
        tokens += made.logits.shape[0] * made.logits.shape[1]
        heard(tokens)
        # The last position has seen all others: no NaN hides, nor becomes the wrong one of several choices.
        if not made.logits[:, -1].sum().isfinite():
            raise NonFinite("a logit of the model is no finite number")

    lm.model.register_forward_hook(passed)
    set_seed(suite.seed)
    try:
        # Not simple_evaluate: it starts git and a survey of the machine, whose answers are not wanted.
        found = run_tasks(lm, {"tasks": tasks}, limit=suite.limit, bootstrap_iters=0)
        rows = [row for task, samples in found["samples"].items() for row in _rows(task, samples)]
    except NonFinite as error:
        return {"metrics": {}, "gate": None, "invalid": str(error), "tokens": tokens}, []
    metrics = {name: _metric(name, ours, found) for name, ours in by_metric(rows).items()}
    return {"metrics": metrics, "gate": _gate(rows), "invalid": None, "tokens": tokens}, rows


def _rows(task: str, samples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each document and metric, of the first filter of a task."""
    for sample in samples:
        about = {"doc": sample["doc_hash"]}
        if "checks" in sample["doc"]:
            about |= {"id": sample["doc"]["id"], "answer": sample["filtered_resps"][0][:ANSWER_CHARS]}
        for name in sample["metrics"] if sample["filter"] == samples[0]["filter"] else ():
            value, weight = _bits(*sample[name]) if name.endswith(RATIOS) else (sample[name], 1)
            if isinstance(value, (int, float)):
                if not math.isfinite(value):
                    raise NonFinite(f"the {name} of a document is no finite number")
                yield {"metric": f"{task}/{name}", "value": value, "weight": weight, **about}


def _bits(nats: float, length: int) -> tuple[float, int]:
    return -nats / math.log(2), length


def _metric(name: str, rows: Rows, found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a metric as the harness aggregates it, with its standard error.

    That of the sum of values over the sum of weights is by its linearization (Cochran, Sampling Techniques,
    3rd edition, 6.4); with weights 1 it is that of a mean. None where the harness aggregates otherwise.
    """
    task, _, metric = name.rpartition("/")
    value = next(each for key, each in found["results"][task].items() if key.startswith(f"{metric},"))
    n, stderr, size = len(rows), None, fmean(row["weight"] for row in rows)
    if n > 1 and math.isclose(value * size, fmean(row["value"] for row in rows), rel_tol=1e-6):
        squares = sum((row["value"] - value * row["weight"]) ** 2 for row in rows)
        stderr = math.sqrt(squares / (n - 1) / n) / size
    is_higher = found["higher_is_better"][task].get(metric, True)
    return {"value": value, "n": n, "stderr": stderr, "higher_is_better": is_higher}


def _gate(rows: Rows) -> dict[str, Any] | None:
    cases = [row for row in rows if "id" in row and row["metric"].endswith("/passed")]  # ids may be alike
    failed = sorted(row["id"] for row in cases if not row["value"])
    told = {"passed": len(cases) - len(failed), "of": len(cases), "failed": failed[:FAILED_IDS]}
    return told if cases else None
