"""The safetensors of a model in the layout of Hugging Face transformers, held against a model's shape.

It needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from stoker.store.errors import DataError
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import sizes_of

DTYPES = ("F32", "BF16", "F16")  # each becomes float32 without loss
MOST_NAMED = 20  # a quantized model differs in hundreds


def open_weights(directory: Path, framework: Literal["np", "pt"]) -> dict[str, Any]:
    """Returns the open safetensors file of each tensor, by the tensor's name.

    Raises DataError where a file is damaged, two have the same tensor, or there is none.
    """
    found: dict[str, Any] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            file: Any = safe_open(path, framework=framework)
        except SafetensorError as problem:
            raise DataError(f"{path}: {problem}") from problem
        if twice := sorted(found.keys() & set(file.keys())):
            raise DataError(f"{path}: {twice[0]} is in another file, too")
        found |= dict.fromkeys(file.keys(), file)
    if not found:
        raise DataError(f"{directory} holds no *.safetensors; pickles are never read")
    return found


def tensor_differences(files: Mapping[str, Any], shape: Shape) -> list[str]:
    """Returns which tensors are missing, unknown, or of another size or type than the model's."""
    wanted = sizes_of(shape)
    told = [f"{name} is missing" for name in sorted(wanted.keys() - files.keys())]
    told += [f"{name} is no tensor of this model" for name in sorted(files.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & files.keys()):
        part = files[name].get_slice(name)
        found = (part.get_dtype(), tuple(part.get_shape()))
        if found not in [(dtype, wanted[name]) for dtype in DTYPES]:
            told.append(f"{name} is {found}, this run's is {' or '.join(DTYPES)} of {wanted[name]}")
    if len(told) > MOST_NAMED:
        told[MOST_NAMED:] = [f"and {len(told) - MOST_NAMED} tensors more"]
    return told
