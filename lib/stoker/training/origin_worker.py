"""Worker that proves what a new run begins with: a checkpoint, or a model in the layout of transformers.

Task: {"checkpoint": path, "with_model": true, "model": the run's, "vocab_size", "tokenizer": the run's file}.
Result: that of `stoker.checkpoints.proof_worker`; of a model's directory, which has a config.json and no
checkpoint.json, with the "differences" from the run in words instead of "body" and "model".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from stoker.checkpoints import proof_worker
from stoker.checkpoints.format import BODY
from stoker.checkpoints.proof import prove_model
from stoker.kit.workers.child import Report, heartbeat, run_worker
from stoker.shards.tokenize.tokenizer import TokenizerUnsupported, encoding_of
from stoker.store.errors import DataError
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_config import CONFIG, config_differences
from stoker.training.model.transformers_weights import open_weights, tensor_differences


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    path = Path(task["checkpoint"])
    if (path / BODY).exists() or not (path / CONFIG).exists():
        return proof_worker.main(task, report)
    report("phase", phase="prove", path=str(path))
    told = proof_worker.as_message(prove_model(path, progress=heartbeat(report, path.name)))
    if told["verdict"] == "proven":
        try:
            told["differences"] = differences(path, task)
        except (DataError, SafetensorError) as flaw:
            told |= {"verdict": "invalid", "reason": str(flaw)}
    return told


def differences(directory: Path, run: dict[str, Any]) -> list[str]:
    """Returns each difference of a model's directory from a run's model and tokenizer; raises DataError.

    Tensors are compared only where config.json agrees: all of them would differ.
    """
    found = config_differences(directory, run["model"], run["vocab_size"])
    if not found:
        shape = Shape.parse(run["model"], vocab_size=run["vocab_size"], seq_len=1)
        found = tensor_differences(open_weights(directory, "np"), shape)
    ours = encoding_of(Path(run["tokenizer"]))
    try:
        theirs = encoding_of(directory / "tokenizer.json")
    except (FileNotFoundError, TokenizerUnsupported) as problem:
        return [*found, str(problem)]
    return found + [f"the tokenizer's {part} differ" for part in ours if theirs[part] != ours[part]]


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True, many=True)
