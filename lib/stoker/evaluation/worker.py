"""Evaluates a checkpoint with a suite: `python -m stoker.evaluation.worker`.

Task and result: docs/evaluation.md#the-worker. What a repetition cannot change is {"refused": a sentence}.
The network is not asked, and nothing is written outside `scratch` and `samples`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.cli.model_weights import CheckpointGone, held_weights
from stoker.evaluation.samples import Rows, Scored, by_metric, read_samples, write_samples
from stoker.kit.lock import hold_directory
from stoker.kit.workers.child import Report, give_way, paced, run_worker
from stoker.store.direct import insist_on_room
from stoker.store.errors import DataError
from stoker.store.files import make_dir, remove_durably, remove_tree

Task = Mapping[str, Any]
PACKAGES = ("lm_eval", "transformers", "torch")


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    place = Path(task["scratch"]) / "evaluation"
    make_dir(place)
    with hold_directory(place, f"another evaluation writes to {place}; wait for it, or name another scratch"):
        try:
            for left in place.iterdir():  # by a worker that was killed
                remove_durably(left)
            _confine(task, place)
            from stoker.training.steps.memory import not_repeated  # with torch

            with not_repeated(f"an evaluation with a batch of {task['batch']}"):
                return {"evaluated": _evaluated(task, place, report)}
        except DataError as error:
            return {"refused": str(error)}
        finally:
            remove_tree(place)


def _confine(task: Task, place: Path) -> None:
    """Keeps the libraries off the net and off the home directory, and gives way to training.

    They are imported afterwards: each reads its environment once.
    """
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    for kept in Path(os.environ.get("HF_DATASETS_CACHE", f"{home}/datasets")).expanduser().glob("*___*"):
        (place / kept.name).symlink_to(kept)  # data that `datasets` has prepared; it writes in `place` alone
    os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TQDM_DISABLE"), "1")
    os.environ |= dict.fromkeys(("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "TMPDIR"), str(place))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.dont_write_bytecode = True  # beside the functions of a suite's tasks: its folder would change
    if task["device"] == "cpu":
        give_way()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(task["threads"])


def _evaluated(task: Task, place: Path, report: Report) -> list[dict[str, Any]]:
    """Returns the line of the checkpoint, after that of the baseline where it had to be evaluated, too."""
    line, rows = _evaluate(task, task, place, report)
    lines, baseline, theirs = [line], task["baseline"], None
    if baseline is None or line["invalid"]:
        return lines
    if baseline["suite_digest"] == line["suite_digest"]:
        with suppress(OSError, EOFError, ValueError):  # gone or damaged
            theirs = read_samples(Path(task["samples"]) / baseline["samples"])
    if theirs is None and baseline["checkpoint"] is not None:
        with suppress(CheckpointGone):
            other, their_rows = _evaluate(task, baseline, place, report)
            lines.insert(0, other)
            theirs = their_rows if other["suite_digest"] == line["suite_digest"] else None
    if theirs is not None:
        report("progress", doing="compare", done=0, of=0)
        margins = dict.fromkeys(line["metrics"], 0.0) if task["margins"] is None else task["margins"]
        verdicts = _verdicts(margins, line["metrics"], rows, theirs)
        line["against"] = {"digest": baseline["digest"], "verdicts": verdicts}
    return lines


def _evaluate(task: Task, subject: Task, place: Path, report: Report) -> Scored:
    """Returns the line of a checkpoint, and the samples, which are written."""
    from stoker.evaluation import harness
    from stoker.evaluation.suite import digest_of, read_suite

    began, digest, model = time.monotonic(), subject["digest"], place / "model"
    report("progress", doing="export", done=0, of=0)
    tokenizer = _export(subject, model)
    report("progress", doing="load", done=0, of=0)
    file = Path(task["suite"])
    suite = read_suite(file)
    before = digest_of(suite, tokenizer, ())
    heard = paced(lambda tokens: report("progress", doing="evaluate", done=tokens, of=0))
    scores, rows = harness.evaluate(model, suite, task["device"], task["batch"], heard)
    remove_tree(model)
    if digest_of(suite, tokenizer, ()) != before:
        raise DataError(f"the suite {file.stem} was changed while it ran; evaluate again")
    suite_digest = digest_of(suite, tokenizer, [row["doc"] for row in rows])
    samples = Path(task["samples"]) / f"{digest[:16]}-{file.stem}-{suite_digest[:16]}.jsonl.gz"
    line = {"checkpoint_digest": digest, "suite": file.stem, "suite_digest": suite_digest, "against": None}
    line |= {**scores, **write_samples(samples, rows, task["samples_bytes"])}
    line |= {"seconds": time.monotonic() - began, "versions": {name: version(name) for name in PACKAGES}}
    return line, rows


def _export(subject: Task, model: Path) -> str:
    """Writes the model as `stoker checkpoint export` does; returns the sha256 of its tokenizer.json."""
    from stoker.cli.transformers_model import bytes_of, write_model

    own = {"kind": "raw", "inputs": [(subject["checkpoint"], subject["digest"], 1.0)]}
    with held_weights(subject.get("weights") or own) as weights:
        insist_on_room(model.parent, bytes_of(weights), 0)
        make_dir(model)
        write_model(weights, model)
    return weights.newest.body.files["tokenizer.json"].sha256


def _verdicts(margins: Mapping[str, float], metrics: Mapping[str, Any], *samples: Rows) -> dict[str, Any]:
    """Returns the verdict on each metric that has a margin, by our samples and the baseline's.

    There is none where the two are not of the same documents, nor where the metric is no mean of its samples:
    of a perplexity they are likelihoods, of which more is better.
    """
    from stoker.evaluation.compare import Sample, compare

    verdicts, sides = {}, [by_metric(rows) for rows in samples]
    means = {name for name, metric in metrics.items() if metric["stderr"] is not None}
    for name in margins.keys() & means & sides[1].keys():
        pairs = [[Sample(row["doc"], row["value"], row["weight"]) for row in side[name]] for side in sides]
        is_higher, is_ratio = metrics[name]["higher_is_better"], any(one.weight != 1 for one in pairs[0])
        with suppress(ValueError):
            found = compare(*pairs, margin=margins[name], higher_is_better=is_higher, ratio=is_ratio)
            verdicts[name] = vars(found)
    return verdicts


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
