"""Names the tensors of a training state and restores them from a checkpoint, bit for bit.

Reads only safetensors and JSON, and unpickles no data. The supervisor has proven the checkpoint before the
launch; this module checks that it belongs to the run.
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

from stoker.checkpoints.seal import Tensor as Named
from stoker.plan.positions import START, Position
from stoker.store.errors import ConfigError, DataError
from stoker.store.record import parse_json
from stoker.supervise.run.numerics_record import of_checkpoint, optimizer_name
from stoker.supervise.run.origin import Origin, prove_origin
from stoker.training.launch import Launch
from stoker.training.model.transformer import Model
from stoker.training.model.transformers_layout import rows_of
from stoker.training.model.transformers_weights import open_weights, tensor_differences
from stoker.training.steps.optimizer import AdamW

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


@dataclass(frozen=True)
class Progress:
    """How far training is."""

    step: int = 0  # optimizer steps made
    tokens: int = 0  # trained on
    position: Position = START  # of the next window
    loss: float | None = None  # the last, in nats
    val_loss: float | None = None  # the last, in nats

    def words(self) -> dict[str, object]:
        """Returns what a datagram tells of it."""
        entry, offset = self.position.as_list()
        return {
            "step": self.step,
            "tokens": self.tokens,
            "loss": self.loss,
            "val_loss": self.val_loss,
            "position": f"{entry},{offset}",
        }


@dataclass(frozen=True)
class SavedState:
    """A sealed checkpoint whose checkpoint.json has been read."""

    directory: Path
    body: Mapping[str, Any]

    @property
    def progress(self) -> Progress:
        told = {name: self.body[name] for name in ("step", "tokens", "loss", "val_loss")}
        return Progress(position=Position.parse(self.body["position"]), **told)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def named(tensors: Mapping[str, Tensor]) -> Iterator[Named]:
    """Yields the tensors as a checkpoint names them, each where it lies."""
    for name, tensor in tensors.items():
        yield Named(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.detach())


def random_state() -> dict[str, Any]:
    """Returns the state of the random generators, as base64."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": _encoded(torch.get_rng_state()), "cuda": [_encoded(state) for state in cuda]}


def read_checkpoint(directory: Path, launch: Launch) -> SavedState:
    """Returns a checkpoint; raises ConfigError, with both values, where it does not fit the launch."""
    body = read_json(directory / "checkpoint.json")
    shape = read_json(directory / "model.json")
    # Both leave out a key that is off. The step of a launch decides `rope`, as it does seq_len.
    names = sorted((shape.keys() | launch.model.keys()) - {"v", "vocab_size", "seq_len", "rope"})
    tokenizer = hashlib.sha256(launch.tokenizer_file.read_bytes()).hexdigest()
    compared = {
        "run id": (body["run_id"], launch.run_id),
        "tokenizer (sha256)": (body["files"]["tokenizer.json"]["sha256"], tokenizer),
        "vocab_size": (shape["vocab_size"], launch.vocab_size),
        **{f"model.{name}": (shape.get(name, False), launch.model.get(name, False)) for name in names},
        "optimizer.name": (optimizer_name(of_checkpoint(directory)), launch.optimizer["name"]),
        "configuration digest": (body["config_digest"], launch.config_digest),
    }
    for what, (saved, now) in compared.items():
        if saved != now:
            raise ConfigError(
                f"{directory.name} cannot be resumed: its {what} is {saved}, this launch's is {now}; "
                "put the old value back, or start a new run (train.run)"
            )
    return SavedState(directory, body)


def restore(saved: SavedState, model: nn.Module, optimizer: AdamW) -> None:
    """Restores parameters, optimizer state and random state from a checkpoint."""
    load_parameters(saved, model)
    _copy_all(saved, "optimizer-", optimizer.tensors())
    optimizer.steps = saved.body["step"]
    random = read_json(saved.directory / "trainer.json")["rng"]
    torch.set_rng_state(_decoded(random["cpu"]))
    if torch.cuda.is_available() and len(random["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_decoded(state) for state in random["cuda"]])


def take_parameters(origin: Origin, model: Model) -> None:
    """Copies the parameters of another run's checkpoint or of a model's directory; proves it first.

    Nothing else is taken. Raises StorageError where it cannot be read now, ConfigError where it is not the
    recorded one any more.
    """
    body = prove_origin(origin)
    if body is not None:
        load_parameters(SavedState(Path(origin.path), body.raw), model)
    else:
        _load_transformers(Path(origin.path), model)


def _load_transformers(directory: Path, model: Model) -> None:
    """Copies the parameters of a model in the layout of transformers, as float32, one tensor at a time."""
    targets = model_tensors(model)
    files = open_weights(directory, "pt")
    if differing := tensor_differences(files, model.shape):
        raise DataError(f"{directory}: {'; '.join(differing)}")
    for name, rows in rows_of(model.shape).items():
        targets[rows.name][rows.start : rows.stop].copy_(files[name].get_tensor(name))


def load_parameters(saved: SavedState, model: nn.Module, stem: str = "model") -> None:
    """Copies a checkpoint's parameters into the model; raises DataError for other names or shapes.

    `stem` begins the names of their files: "ema" for the averaged ones.
    """
    _copy_all(saved, f"{stem}-", model_tensors(model))


def load_tensors(saved: SavedState, prefix: str) -> dict[str, Tensor]:
    """Returns all tensors of the files with a prefix; opens only files that checkpoint.json lists."""
    tensors: dict[str, Tensor] = {}
    for name in sorted(saved.body["files"]):
        if not (name.startswith(prefix) and name.endswith(".safetensors")):
            continue
        path = saved.directory / name
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as problem:
            raise DataError(f"{path}: {problem}") from problem
    return tensors


def _copy_all(saved: SavedState, prefix: str, targets: Mapping[str, Tensor]) -> None:
    found = load_tensors(saved, prefix)
    if differing := sorted(found.keys() ^ targets.keys()):
        raise DataError(
            f"{saved.directory}: the checkpoint and the model differ in tensors, first in {differing[0]}"
        )
    for name, target in targets.items():
        value = found[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise DataError(
                f"{saved.directory}: {name} is {value.dtype} {tuple(value.shape)}, "
                f"the model's {target.dtype} {tuple(target.shape)}"
            )
        target.copy_(value)


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object; raises DataError with the file's path for any other content."""
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
