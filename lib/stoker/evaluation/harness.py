"""Runs a suite by lm-evaluation-harness over the directory of a model.

Import it once the environment is set as the worker sets it: the libraries read theirs when they are imported.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from lm_eval import evaluate as run_tasks
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import set_seed

from stoker.evaluation.samples import Row, Values, lacks_value, values_of
from stoker.evaluation.suite import Suite
from stoker.store.errors import DataError

# A CPU computes short passes as fast, and a pass holds its logits twice: so much they may take, in bytes.
CPU_LOGITS_BYTES = 256 << 20
ANSWER_CHARS = 2000  # of an answer that is kept
FAILED_IDS = 20
Heard = Callable[[int], None]
OF_LOADING = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, yaml.YAMLError)


class ExportLM(HFLM):  # type: ignore[misc]
    """The harness's model over an exported directory, whose tokenizer puts end-of-text before a text."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each whole text; end-of-text stands before it once, not twice.

        The longest come first: the harness sorts by length within a batch alone.
        """
        order = sorted(range(len(requests)), key=lambda place: -len(requests[place].args[0]))
        self.add_bos_token, before = False, self.add_bos_token
        try:
            found = super().loglikelihood_rolling([requests[place] for place in order], disable_tqdm)
        finally:
            self.add_bos_token = before
        return [value for _, value in sorted(zip(order, found, strict=True))]


def load_tasks(suite: Suite) -> dict[str, Any]:
    """Returns the harness's tasks of a suite. Raises DataError where one is unknown or cannot be loaded.

    Changes into the suite's folder: its tasks name their files relative to it.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        if suite.include is not None:
            os.chdir(suite.include)
        manager = TaskManager(include_path=suite.include, include_defaults=False)
        if set(suite.tasks) - set(manager.all_tasks):  # else the thousands of the harness's are not read
            manager = TaskManager(include_path=suite.include)
        for number, name in enumerate(suite.tasks):
            if name not in manager.all_tasks:
                raise suite.unknown_task(number, manager.all_tasks)
        tasks: dict[str, Any] = manager.load(list(suite.tasks))["tasks"]
    except OF_LOADING as error:
        why = f"its tasks cannot be loaded: {error}; correct their files, or bring their data to this machine"
        raise DataError(f"suite {suite.name}: {why}") from error
    return tasks


def evaluate(
    directory: Path, suite: Suite, tasks: Mapping[str, Any], device: str, batch: int, heard: Heard
) -> tuple[dict[str, Any], list[Row]]:
    """Returns what a line of the record says of the scores of a directory's model, and the samples.

    `heard` is called with the tokens so far, after each pass.
    """
    lm = ExportLM(str(directory), device=device, dtype="float32", batch_size=batch)
    if device == "cpu":
        logits = 8 * lm.max_length * lm.model.config.vocab_size
        lm.batch_size_per_gpu = max(1, min(batch, CPU_LOGITS_BYTES // logits))
    for task in tasks.values():
        task.set_config("num_fewshot", suite.shots)
        task.set_fewshot_seed(suite.seed)
        if task.OUTPUT_TYPE == "generate_until":
            drawn = {"temperature": suite.decoding.temperature, "do_sample": suite.decoding.temperature > 0}
            # Half of a short context is left to the prompt.
            drawn["max_gen_toks"] = min(suite.decoding.max_tokens, lm.max_length // 2)
            task.set_config("generation_kwargs", drawn, update=True)
    tokens, is_finite = 0, True

    def passed(_model: Any, _given: Any, made: Any) -> None:
        nonlocal tokens, is_finite
        tokens += made.logits.shape[0] * made.logits.shape[1]
        # The last position has seen all others: no NaN hides, nor becomes the wrong one of several choices.
        is_finite = is_finite and bool(made.logits[:, -1].sum().isfinite())
        heard(tokens)

    lm.model.register_forward_hook(passed)
    set_seed(suite.seed)
    # Not simple_evaluate: it starts git and a survey of the machine, whose answers are not wanted.
    found = run_tasks(lm, {"tasks": tasks}, limit=suite.limit, bootstrap_iters=0)
    rows = [row for task, samples in found["samples"].items() for row in _rows(task, samples)]
    is_valid = is_finite and not any(map(lacks_value, rows))
    return {
        "metrics": dict(_metrics(found, values_of(rows))),
        "gate": _gate(rows),
        "invalid": None if is_valid else "a log-likelihood or a logit of the model is no number",
        "tokens": tokens,
    }, rows


def _rows(task: str, samples: list[dict[str, Any]]) -> Iterator[Row]:
    """Yields a row for each document, of the first filter of a task; equal documents are numbered."""
    seen: Counter[str] = Counter()
    for sample in samples:
        if sample["filter"] != samples[0]["filter"]:
            continue
        seen[sample["doc_hash"]] += 1
        pairs = {name: _pair(sample[name]) for name in sample["metrics"]}
        row: dict[str, Any] = {
            "task": task,
            "doc": f"{sample['doc_hash']}-{seen[sample['doc_hash']]}",
            "values": {name: pair for name, pair in pairs.items() if pair is not None},
        }
        if "checks" in sample["doc"]:
            row |= {"id": sample["doc"]["id"], "answer": sample["filtered_resps"][0][:ANSWER_CHARS]}
        yield row


def _pair(value: Any) -> tuple[float | None, float] | None:
    """Returns the value of a document and its weight; a log-likelihood with a length becomes bits."""
    match value:
        case int() | float():
            return value if math.isfinite(value) else None, 1.0
        case (float() as nats, int() as length):
            return -nats / math.log(2) if math.isfinite(nats) else None, length
    return None


def _metrics(found: Mapping[str, Any], values: Values) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each metric that has a value for each document, as the harness aggregates it."""
    for name, pairs in values.items():
        task, _, metric = name.rpartition("/")
        value = next(each for key, each in found["results"][task].items() if key.startswith(f"{metric},"))
        yield (
            name,
            {
                "value": value if math.isfinite(value) else None,
                "n": len(pairs),
                "stderr": _stderr(value, list(pairs.values())),
                "higher_is_better": found["higher_is_better"][task][metric],
            },
        )


def _stderr(ratio: float, pairs: list[tuple[float, float]]) -> float | None:
    """Returns the standard error of the sum of values over the sum of weights, by its linearization.

    Cochran, Sampling Techniques, 3rd edition, 6.4; of weights 1 it is that of a mean. None where the harness
    aggregates otherwise, such as a perplexity.
    """
    size = fmean(weight for _, weight in pairs) if len(pairs) > 1 else 0.0
    if not size or not math.isclose(ratio, fmean(value for value, _ in pairs) / size, rel_tol=1e-6):
        return None
    squares = sum((value - ratio * weight) ** 2 for value, weight in pairs)
    return math.sqrt(squares / (len(pairs) - 1) / len(pairs)) / size


def _gate(rows: list[Row]) -> dict[str, Any] | None:
    cases = {row["id"]: row["values"]["passed"][0] for row in rows if "id" in row}
    failed = sorted(case for case, passed in cases.items() if not passed)
    told = {"passed": len(cases) - len(failed), "of": len(cases), "failed": failed[:FAILED_IDS]}
    return told if cases else None
