"""The safetensors of a model in the layout of Hugging Face transformers, held against a model's shape.

It needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import safe_open

from stoker.store.errors import DataError
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import sizes_of

DTYPES = ("F32", "BF16", "F16")  # each becomes float32 without loss
MOST_NAMED = 50  # tensors that differ: a quantized model has hundreds


def open_weights(directory: Path, framework: Literal["np", "pt"]) -> dict[str, Any]:
    """Returns the open safetensors file of each tensor, by the tensor's name.

    Raises DataError where two files have the same tensor or there is none, SafetensorError.
    """
    found: dict[str, Any] = {}
    for path in sorted(path for path in directory.glob("*.safetensors") if path.is_file()):
        file: Any = safe_open(path, framework=framework)
        if twice := sorted(found.keys() & set(file.keys())):
            raise DataError(f"{path}: {twice[0]} is in another file, too")
        found |= dict.fromkeys(file.keys(), file)
    if not found:
        raise DataError(f"{directory} holds no *.safetensors; pickles are never read")
    return found


def tensor_differences(files: Mapping[str, Any], shape: Shape) -> list[str]:
    """Returns which tensors are missing, unknown, or of another size or type than the model's."""
    wanted = sizes_of(shape)
    parts = {name: file.get_slice(name) for name, file in files.items()}
    found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    told = [
        f"{name} is {found.get(name, 'missing')}, this run's is {wanted.get(name, 'not there')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) not in [(dtype, wanted.get(name)) for dtype in DTYPES]
    ]
    return told[:MOST_NAMED]
