"""The safetensors format, written by hand: nothing heavy is needed and every byte is hashed on its way.

8 bytes little-endian: length of the header; the header, JSON, padded with spaces to a multiple of 8; the
tensors' bytes end to end (https://github.com/huggingface/safetensors, format description in its README).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

FILE_BYTES = 1 << 30  # files are split here, so that they can be hashed in parallel

_ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class Tensor(NamedTuple):
    """A named tensor: dtype as safetensors spells it (F32, BF16, I64, ...), and its contiguous bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def file_chunks(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of one file; raises ValueError when a tensor's bytes do not fit its dtype and shape.

    Wide items come first, so that each tensor is aligned to its own item.
    """
    ordered = sorted(tensors, key=lambda tensor: -_item_bytes(tensor))
    if len({tensor.name for tensor in ordered}) != len(ordered):
        raise ValueError("two tensors have one name")
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in ordered:
        size = _checked_bytes(tensor)
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
    """Tensors in order, in groups of at most `limit` bytes; a larger tensor stands alone."""
    groups: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.data.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.data.nbytes
    return groups


def _item_bytes(tensor: Tensor) -> int:
    if tensor.dtype not in _ITEM_BYTES:
        raise ValueError(f"{tensor.name}: dtype {tensor.dtype} is not one of {', '.join(_ITEM_BYTES)}")
    return _ITEM_BYTES[tensor.dtype]


def _checked_bytes(tensor: Tensor) -> int:
    size = _item_bytes(tensor)
    for extent in tensor.shape:
        size *= extent
    if size != tensor.data.nbytes:
        raise ValueError(f"{tensor.name}: {tensor.data.nbytes} bytes, but its shape and dtype need {size}")
    return size
