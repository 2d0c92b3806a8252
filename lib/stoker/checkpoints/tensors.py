"""Writes the safetensors format without a library: no heavy import, and every byte is hashed on its way.

8 bytes little-endian: length of the header; the header, JSON, padded with spaces to a multiple of 8; the
tensors' bytes end to end (https://github.com/huggingface/safetensors, format description in its README).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

FILE_BYTES = 1 << 30  # a limit on files, so that they can be hashed in parallel


class Tensor(NamedTuple):
    """A named tensor: dtype as safetensors spells it (F32, BF16, I64, ...), and its contiguous bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def file_chunks(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of one file; tensors with wide items come first, so that each tensor is aligned."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.data.nbytes // max(1, math.prod(tensor.shape)))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in ordered:
        size = tensor.data.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in ordered:
        if tensor.data.nbytes:
            yield tensor.data.cast("B")


def split(tensors: Sequence[Tensor], limit: int = FILE_BYTES) -> list[list[Tensor]]:
    """Returns the tensors in order, in groups of at most `limit` bytes; a larger tensor is its own group."""
    groups: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.data.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.data.nbytes
    return groups
