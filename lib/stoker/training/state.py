"""A training state as named buffers, and back, bit for bit.

Only safetensors and JSON are read: nothing is unpickled. A state is restored from a checkpoint that was
proven before the launch; here it is checked to be this run's.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from stoker.plan.positions import START, Position
from stoker.store.errors import ConfigError, DataError
from stoker.store.parsing import parse_json
from stoker.training.launch import Launch
from stoker.training.optimizer import AdamW

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
NamedBuffer = tuple[str, str, tuple[int, ...], memoryview]  # name, safetensors dtype, shape, bytes


@dataclass(frozen=True)
class Progress:
    """How far training is: optimizer steps, tokens trained on, the next window, the last losses (nats)."""

    step: int = 0
    tokens: int = 0
    position: Position = START
    loss: float | None = None
    val_loss: float | None = None


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """The optimizer's means as <parameter>.exp_avg and <parameter>.exp_avg_sq; its steps are the run's."""
    return {
        f"{name}.{word}": getattr(moments, word)
        for name, moments in optimizer.moments.items()
        for word in ("exp_avg", "exp_avg_sq")
    }


def buffers(tensors: Mapping[str, Tensor]) -> Iterator[NamedBuffer]:
    """Each tensor's bytes without a copy where it is on the CPU."""
    for name, tensor in tensors.items():
        flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        yield name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), flat.numpy().data


def random_state() -> dict[str, Any]:
    """The random generators' state, as base64."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": _encoded(torch.get_rng_state()), "cuda": [_encoded(state) for state in cuda]}


def read_checkpoint(directory: Path, launch: Launch) -> dict[str, Any]:
    """checkpoint.json of a proven checkpoint; ConfigError, with both values, where it is of another run."""
    body = read_json(directory / "checkpoint.json")
    shape = read_json(directory / "model.json")
    tokenizer = hashlib.sha256(launch.tokenizer_file.read_bytes()).hexdigest()
    compared = {
        "run id": (body["run_id"], launch.run_id),
        "configuration digest": (body["config_digest"], launch.config_digest),
        "tokenizer (sha256)": (body["files"]["tokenizer.json"]["sha256"], tokenizer),
        "vocab_size": (shape["vocab_size"], launch.vocab_size),
        **{f"model.{field}": (shape.get(field), value) for field, value in launch.model.items()},
    }
    for what, (saved, now) in compared.items():
        if saved != now:
            raise ConfigError(
                f"{directory.name} cannot be resumed: its {what} is {saved}, this launch's is {now}; "
                "put the old value back, or start a new run (train.run)"
            )
    return body


def position_of(body: Mapping[str, Any] | None) -> Position:
    """Where a checkpoint's next window is; the plan's start without one."""
    return START if body is None else Position.parse(body["position"])


def restore(directory: Path, body: Mapping[str, Any], model: nn.Module, optimizer: AdamW) -> Progress:
    """Put a checkpoint's parameters, optimizer state and random state in place; returns its progress."""
    load_parameters(directory, body, model)
    _copy_all(load_tensors(directory, body, "optimizer-"), optimizer_tensors(optimizer), directory)
    optimizer.steps = body["step"]
    random = read_json(directory / "trainer.json")["rng"]
    torch.set_rng_state(_decoded(random["cpu"]))
    if torch.cuda.is_available() and len(random["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_decoded(state) for state in random["cuda"]])
    return Progress(
        step=body["step"],
        tokens=body["tokens"],
        position=position_of(body),
        loss=body["loss"],
        val_loss=body["val_loss"],
    )


def load_parameters(directory: Path, body: Mapping[str, Any], model: nn.Module) -> None:
    """Copy a checkpoint's parameters into the model; DataError unless names and shapes are the model's."""
    _copy_all(load_tensors(directory, body, "model-"), model_tensors(model), directory)


def load_tensors(directory: Path, body: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """All tensors of the listed files with a prefix, mapped; no file that is not listed is opened."""
    tensors: dict[str, Tensor] = {}
    for name in sorted(body["files"]):
        if not (name.startswith(prefix) and name.endswith(".safetensors")):
            continue
        try:
            with safe_open(directory / name, framework="pt", device="cpu") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as problem:
            raise DataError(f"{directory / name}: {problem}") from problem
    return tensors


def _copy_all(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor], directory: Path) -> None:
    differing = sorted(saved.keys() ^ wanted.keys())
    if differing:
        raise DataError(
            f"{directory}: the checkpoint and the model differ in tensors, first in {differing[0]}"
        )
    for name, tensor in wanted.items():
        if saved[name].shape != tensor.shape or saved[name].dtype != tensor.dtype:
            raise DataError(
                f"{directory}: {name} is {saved[name].dtype} {tuple(saved[name].shape)}, "
                f"the model's {tensor.dtype} {tuple(tensor.shape)}"
            )
        tensor.copy_(saved[name])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises DataError naming the file when it is none."""
    try:
        body = parse_json(path.read_bytes())
    except ValueError as problem:
        raise DataError(f"{path}: {problem}") from problem
    if not isinstance(body, dict):
        raise DataError(f"{path} does not hold an object")
    return body


def _encoded(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _decoded(state: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(state), dtype=np.uint8).copy())
