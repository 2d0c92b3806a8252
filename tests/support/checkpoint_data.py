"""Small sealed checkpoints for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.seal import CheckpointWriter, Tensor, tensor_files

TRAINER_FILES = ("model-00001.safetensors", "optimizer-00001.safetensors", "trainer.json", "plan.jsonl")

DEEP = b"[" * 100_000 + b"]" * 100_000  # JSON that no interpreter follows to its end


def body_of(step: int, **changes: Any) -> dict[str, Any]:
    """A checkpoint.json body of a made-up run; each step trains on 16 windows of 8 tokens."""
    return {
        "run": "main",
        "run_id": "ab" * 16,
        "step": step,
        "tokens": step * 128,
        "position": [0, step * 16],
        "timeline": 0,
        "plan_head": "0" * 64,
        "world_size": 1,
        "micro_batch": 8,
        "config_digest": "00" * 32,
        "loss": 3.5,
        "val_loss": None,
        "run_record": {},
        **changes,
    }


def seal(
    checkpoints: Path,
    step: int,
    *,
    launch: str = "l1",
    files: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> Path:
    """Seal a checkpoint with tensors of the step's own; `files` replaces or adds whole files."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    values = memoryview(bytes(range(step % 7, step % 7 + 64)))
    extra = dict(files or {})
    with CheckpointWriter(checkpoints, step, launch) as writer:
        for file in tensor_files("model", [Tensor("w", "F32", (4, 4), values)]):
            writer.add(*file)
        for file in tensor_files("optimizer", [Tensor("w.exp_avg", "F32", (16,), values)]):
            writer.add(*file)
        for name, data in {"trainer.json": b'{"rng":1}\n', "plan.jsonl": b"", **extra}.items():
            writer.add(name, [data])
        return writer.seal(body_of(step, **changes))


def with_body(checkpoint: Path, data: bytes) -> Path:
    """Give a sealed checkpoint another checkpoint.json, its sum in SHA256SUMS with it."""
    body, sums = checkpoint / "checkpoint.json", checkpoint / "SHA256SUMS"
    before = hashlib.sha256(body.read_bytes()).hexdigest()
    body.write_bytes(data)
    sums.write_text(sums.read_text().replace(before, hashlib.sha256(data).hexdigest()))
    return checkpoint
