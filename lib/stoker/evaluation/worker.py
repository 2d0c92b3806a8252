"""Evaluates a checkpoint with a suite: `python -m stoker.evaluation.worker`.

Task and result: docs/evaluation.md#the-worker. What a repetition cannot change is {"refused": a sentence}.
The network is not asked, and nothing is written outside `scratch` and `samples`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import BODY, read_body
from stoker.checkpoints.retention import reading
from stoker.cli.transformers_model import bytes_of, write_model
from stoker.evaluation.samples import Row, Values, read_samples, values_of, write_samples
from stoker.evaluation.suite import digest_of, read_suite
from stoker.kit.lock import hold_directory
from stoker.kit.workers.child import Report, give_way, paced, run_worker
from stoker.store.direct import hash_file, insist_on_room
from stoker.store.errors import DataError, LockHeld, NoMemory
from stoker.store.files import TEMPORARY, make_dir, remove_tree, temporary_beside

PLACE = "evaluation"  # of the directories in the scratch directory
PACKAGES = ("lm_eval", "transformers", "torch")


class CheckpointGone(DataError):
    """The checkpoint was pruned, quarantined or replaced meanwhile."""


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    with _place(Path(task["scratch"])) as place:
        _confine(task, place)
        from stoker.training.steps.failures import is_out_of_memory, words_of

        try:
            return {"evaluated": _evaluated(task, place, report)}
        except DataError as error:
            return {"refused": str(error)}
        except Exception as problem:
            if not is_out_of_memory(problem):
                raise
            why = f"memory ran out at a batch of {task['batch']}: {words_of(problem)}; make it smaller"
            raise NoMemory(why) from problem


@contextmanager
def _place(scratch: Path) -> Iterator[Path]:
    """Yields a directory of this worker's own, removed at the end; removes those that killed ones left."""
    make_dir(scratch)
    for left in scratch.glob(f"{TEMPORARY}{PLACE}-*"):
        with suppress(LockHeld, FileNotFoundError), hold_directory(left, "at work"):
            remove_tree(left)
    place = temporary_beside(scratch / PLACE)
    make_dir(place)
    try:
        with hold_directory(place, "at work"):
            yield place
    finally:
        remove_tree(place)


def _confine(task: Mapping[str, Any], place: Path) -> None:
    """Keeps the libraries off the net and off the home directory, and within threads and memory.

    They are imported afterwards: each reads its environment once.
    """
    os.environ |= {
        **dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TQDM_DISABLE"), "1"),
        **{f"HF_{name}_CACHE": str(place / "cache") for name in ("DATASETS", "MODULES")},
        "TOKENIZERS_PARALLELISM": "false",
    }
    if task["device"] == "cpu":
        give_way()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.set_num_threads(task["threads"])
    if (most := task["memory_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _evaluated(task: Mapping[str, Any], place: Path, report: Report) -> list[dict[str, Any]]:
    """Returns the line of the checkpoint, after that of the baseline where it had to be evaluated, too."""
    line, rows = _evaluate(task, task, place, report)
    lines, baseline, theirs = [line], task["baseline"], None
    if baseline is None:
        return lines
    if baseline["suite_digest"] == line["suite_digest"]:
        with suppress(OSError, EOFError, ValueError, LookupError):  # gone or damaged
            theirs = values_of(read_samples(Path(task["samples"]) / baseline["samples"]))
    if theirs is None and baseline["checkpoint"] is not None:
        with suppress(CheckpointGone):
            other, their_rows = _evaluate(task, baseline, place, report)
            lines.insert(0, other)
            theirs = values_of(their_rows) if other["suite_digest"] == line["suite_digest"] else None
    if theirs is not None:
        report("progress", doing="compare", done=0, of=0)
        verdicts = _verdicts(task["margins"], values_of(rows), theirs, line["metrics"])
        line["against"] = {"digest": baseline["digest"], "verdicts": verdicts}
    return lines


def _evaluate(
    task: Mapping[str, Any], subject: Mapping[str, Any], place: Path, report: Report
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the line of a checkpoint, whose samples are written, and these samples."""
    from stoker.evaluation import harness

    began, digest, model = time.monotonic(), subject["digest"], place / "model"
    report("progress", doing="export", done=0, of=0)
    tokenizer = _export(Path(subject["checkpoint"]), digest, model)
    report("progress", doing="load", done=0, of=0)
    suite = read_suite(Path(task["suite"]))
    before = digest_of(suite, tokenizer, ())
    heard = paced(lambda tokens: report("progress", doing="evaluate", done=tokens, of=0))
    tasks = harness.load_tasks(suite)
    scores, rows = harness.evaluate(model, suite, tasks, task["device"], task["batch"], heard)
    remove_tree(model)
    if digest_of(suite, tokenizer, ()) != before:
        raise DataError(f"the suite {suite.name} was changed while it ran; evaluate again")
    suite_digest = digest_of(suite, tokenizer, [row["doc"] for row in rows])
    file = Path(task["samples"]) / f"{digest[:16]}-{suite.name}-{suite_digest[:16]}.jsonl.gz"
    return {
        "checkpoint_digest": digest,
        "suite": suite.name,
        "suite_digest": suite_digest,
        "against": None,
        **scores,
        **write_samples(file, rows, task["samples_bytes"]),
        "seconds": round(time.monotonic() - began, 3),
        "versions": {name: version(name) for name in PACKAGES},
    }, rows


def _export(checkpoint: Path, digest: str, model: Path) -> str:
    """Writes the model as `stoker checkpoint export` does; returns the sha256 of its tokenizer.json."""
    try:
        with reading(checkpoint):
            if hash_file(checkpoint / BODY).sha256 != digest:
                raise CheckpointGone(f"{checkpoint} is another one than was to be evaluated; ask again")
            files = read_body((checkpoint / BODY).read_bytes()).files
            insist_on_room(model.parent, bytes_of(files), 0)
            make_dir(model)
            write_model(checkpoint, files, model)
    except FileNotFoundError as error:
        raise CheckpointGone(f"{checkpoint} was pruned or quarantined meanwhile; name another") from error
    return files["tokenizer.json"].sha256


def _verdicts(
    margins: Mapping[str, float] | None, ours: Values, theirs: Values, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the verdict on each metric that has a margin, without margins on all, with those of 0.

    There is none on a metric whose samples are of different documents.
    """
    from stoker.evaluation.compare import Sample, compare

    verdicts = {}
    for name in ours.keys() & theirs.keys() & (margins or ours).keys():
        pairs = [
            [Sample(doc, value, weight) for doc, (value, weight) in sorted(each[name].items())]
            for each in (ours, theirs)
        ]
        is_ratio = any(sample.weight != 1 for sample in pairs[0])
        margin, is_higher = (margins or {}).get(name, 0.0), metrics[name]["higher_is_better"]
        with suppress(ValueError):
            found = compare(*pairs, margin=margin, higher_is_better=is_higher, ratio=is_ratio)
            verdicts[name] = vars(found)
    return verdicts


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
