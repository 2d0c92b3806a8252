"""What a checkpoint of the training state holds."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.checkpoints.handover import File
from stoker.checkpoints.seal import tensor_files
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.log import GENESIS
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.numerics import Numerics
from stoker.training.state import Progress, model_tensors, named, random_state
from stoker.training.steps.optimizer import AdamW


def contents(
    launch: Launch,
    progress: Progress,
    model: Model,
    optimizer: AdamW,
    *,
    average: Mapping[str, Tensor] | None = None,
    numerics: Numerics,
    plan_head: str,
) -> tuple[list[File], dict[str, Any]]:
    """Returns the files and the body of a checkpoint of `progress`, with the tensors that training changes.

    The checkpoint holds the plan as far as this trainer has read it.
    """
    position = progress.position.as_list()
    trainer = {
        "v": 1,
        "rng": random_state(),
        "data": {"position": position, "tokens": progress.tokens, "plan_head": plan_head},
        "numerics": numerics.body(),
        "compute": {"threads": torch.get_num_threads(), "deterministic": launch.deterministic},
        "versions": _versions(),
    }
    body = {
        "v": 1,
        "run": launch.run,
        "run_id": launch.run_id,
        "step": progress.step,
        "tokens": progress.tokens,
        "position": position,
        "timeline": launch.timeline,
        "plan_head": plan_head,
        "world_size": 1,
        "micro_batch": numerics.micro_batch,
        "config_digest": launch.config_digest,
        "loss": progress.loss,
        "val_loss": progress.val_loss,
        "run_record": launch.run_record,
    }
    files: list[File] = [
        *tensor_files("model", named(model_tensors(model))),
        *tensor_files("optimizer", named(optimizer.tensors())),
        *(tensor_files("ema", named(average)) if average else ()),
        ("trainer.json", [canonical_json(trainer)]),
        ("model.json", [canonical_json({"v": 1, **model.shape.body()})]),
        ("tokenizer.json", [launch.tokenizer_file.read_bytes()]),
        ("plan.jsonl", [log_up_to(launch.plan, plan_head)]),
        ("timelines.jsonl", [launch.timelines.read_bytes() if launch.timelines.exists() else b""]),
    ]
    return files, body


def _versions() -> dict[str, str]:
    """Returns the versions that the bits of a step depend on."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "stoker": version("stoker"),
    }


def log_up_to(path: Path, head: str) -> bytes:
    """Returns a chained log's bytes to the line with hash `head`; raises DataError without that line."""
    if head == GENESIS:
        return b""
    lines = path.read_bytes().split(b"\n")
    for count, line in enumerate(lines, start=1):
        if hashlib.sha256(line).hexdigest() == head:
            return b"\n".join([*lines[:count], b""])
    raise DataError(
        f"{path} no longer has the entry {head} that this run was trained by; nothing may rewrite it"
    )
