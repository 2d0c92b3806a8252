"""Saves checkpoints of the training state: when they are due, their files, their checkpoint.json."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from stoker.checkpoints.seal import CheckpointWriter
from stoker.store.errors import DataError
from stoker.store.files import canonical_json
from stoker.store.log import GENESIS
from stoker.training.device import Compute
from stoker.training.launch import Launch
from stoker.training.model import Model
from stoker.training.optimizer import AdamW
from stoker.training.state import Progress, buffers, model_tensors, optimizer_tensors, random_state


def save(
    launch: Launch,
    progress: Progress,
    model: Model,
    optimizer: AdamW,
    *,
    compute: Compute,
    micro_batch: int,
    plan_head: str,
) -> Path:
    """Seals a checkpoint of `progress`, durable on return; returns its directory.

    The checkpoint holds the plan as far as this trainer has read it. Raises StorageError (disk full, I/O).
    """
    position = progress.position.as_list()
    trainer = {
        "v": 1,
        "rng": random_state(),
        "data": {"position": position, "tokens": progress.tokens, "plan_head": plan_head},
        "compute": {
            "device": compute.device.type,
            "precision": compute.precision,
            "threads": torch.get_num_threads(),
            "deterministic": launch.deterministic,
            "micro_batch": micro_batch,
        },
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
        "micro_batch": micro_batch,
        "config_digest": launch.config_digest,
        "loss": progress.loss,
        "val_loss": progress.val_loss,
        "run_record": launch.run_record,
    }
    with CheckpointWriter(launch.layout.checkpoints, progress.step, launch.id) as writer:
        writer.add_tensors("model", buffers(model_tensors(model)))
        writer.add_tensors("optimizer", buffers(optimizer_tensors(optimizer)))
        writer.add("trainer.json", [canonical_json(trainer)])
        writer.add("model.json", [canonical_json({"v": 1, **asdict(model.shape)})])
        writer.add("tokenizer.json", [launch.tokenizer_file.read_bytes()])
        writer.add("plan.jsonl", [log_up_to(launch.plan, plan_head)])
        writer.add("timelines.jsonl", [launch.timelines.read_bytes() if launch.timelines.exists() else b""])
        return writer.seal(body)


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
    raw = path.read_bytes()
    end = 0
    for line in raw.splitlines(keepends=True):
        end += len(line)
        if hashlib.sha256(line.rstrip(b"\n")).hexdigest() == head:
            return raw[:end] if line.endswith(b"\n") else raw[:end] + b"\n"
    raise DataError(
        f"{path} no longer has the entry {head} that this run was trained by; nothing may rewrite it"
    )


def is_due(
    every_s: float | None, every_steps: int | None, *, step: int, saved_step: int, unsaved_s: float
) -> bool:
    """Returns whether to save a run that was last saved `unsaved_s` ago; never twice at the same step."""
    if step == saved_step:
        return False
    by_steps = every_steps is not None and step % every_steps == 0
    return by_steps or (every_s is not None and unsaved_s >= every_s)
