"""The numerics of a run as records hold them: what decides the bits of a step besides a launch's settings.

They are a JSON object of kernels, their sizes and the facts of the machine; the trainer resolves them
(`stoker.training.numerics`). They are in a checkpoint's trainer.json, in launch.json, and in the settings of
launches.jsonl. Records from before there were numerics have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError, storage_errors
from stoker.store.record import parse_json

TRAINER = "trainer.json"
ASKED = "micro_batch_asked"  # what the file said when `micro_batch` was chosen: it decides no bit itself
OF_A_PHASE = ("micro_batch", ASKED, "recompute")  # a phase of the run begins with its own

MACHINE = ("device", "card", "cuda", "cpu", "torch")  # facts of the machine

# The kernels of a run that began before there were numerics.
LEGACY: Mapping[str, Any] = {
    "optimizer": "adamw_loop",
    "loss": "cross_entropy",
    "loss_chunk": None,
    "attention": "sdpa",
    "compile": "none",
    "recompute": "none",
    "tf32": False,
}


def of_checkpoint(directory: Path) -> dict[str, Any]:
    """Returns the numerics of a proven checkpoint; of an earlier Stoker's, what it tells of them.

    Raises DataError for a trainer.json that is no record, StorageError where it cannot be read.
    """
    path = directory / TRAINER
    try:
        with storage_errors("read", path):
            trainer = dict(parse_json(path.read_bytes()))
        if "numerics" in trainer:
            return dict(trainer["numerics"])
        compute, versions = trainer.get("compute", {}), trainer.get("versions", {})
        known = {name: compute.get(name) for name in ("device", "precision", "micro_batch")}
        known["torch"] = versions.get("torch")
    except (FileNotFoundError, ValueError, TypeError, AttributeError) as problem:
        raise DataError(f"{path}: {problem}") from problem
    return {**LEGACY, **{name: value for name, value in known.items() if value is not None}}


def is_known(numerics: Mapping[str, Any] | None) -> bool:
    """Whether numerics are whole: an earlier Stoker's tell nothing of the machine."""
    return numerics is not None and set(MACHINE) <= numerics.keys()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns what makes the bits of two numerics differ, each as "name: before -> now"; [] where equal.

    A value that one of the two lacks is not compared.
    """
    return [
        f"{name}: {_text(before[name])} -> {_text(value)}"
        for name, value in now.items()
        if name != ASKED and name in before and before[name] != value
    ]


def optimizer_name(numerics: Mapping[str, Any]) -> str:
    """Returns the `train.optimizer.name` that numerics are of."""
    return "muon" if numerics.get("optimizer") == "muon" else "adamw"


def was_halved(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the trainer made its micro-batch smaller itself: nobody had asked for another one."""
    known = {"micro_batch", ASKED} <= before.keys()
    return known and before[ASKED] == now[ASKED] and now["micro_batch"] < before["micro_batch"]


def _text(value: object) -> str:
    return "none" if value is None else str(value)
