"""Directories with a model in the layout of Hugging Face transformers, written without it or torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from stoker.store.checksums import write_checksums
from stoker.store.direct import hash_file
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import config_of, sizes_of


def write_model(directory: Path, shape: Shape, tokenizer: bytes, **config: Any) -> Path:
    """A model of random weights; `config` are further or other settings of its config.json."""
    random = np.random.default_rng(1)
    tensors = {name: random.normal(size=size).astype("<f4") for name, size in sizes_of(shape).items()}
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**config_of(shape, 0), **config}))
    (directory / "tokenizer.json").write_bytes(tokenizer)
    return directory


def list_sums(directory: Path) -> None:
    """Writes its SHA256SUMS."""
    write_checksums(directory, {file.name: hash_file(file).sha256 for file in directory.iterdir()})
