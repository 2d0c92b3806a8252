"""Two checkpoints tensor by tensor, bit by bit, read straight from their safetensors files."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from stoker.checkpoints.format import CheckpointBody
from stoker.store.errors import DataError
from stoker.store.parsing import parse_json

CHUNK_BYTES = 1 << 20
TENSORS = ("model-", "optimizer-")


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes lie: offsets in the file, from its begin."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, piece by piece."""
        with self.file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for begin in range(self.first, self.last, CHUNK_BYTES):
                yield data[begin : min(begin + CHUNK_BYTES, self.last)]


def tensor_places(directory: Path, body: CheckpointBody) -> dict[str, Place]:
    """Every tensor of the model and the optimizer by name; raises DataError for a file that is none."""
    places: dict[str, Place] = {}
    for name in sorted(body.files):
        if name.startswith(TENSORS) and name.endswith(".safetensors"):
            kind = name.split("-")[0]
            places |= {f"{kind} {tensor}": place for tensor, place in _places(directory / name)}
    return places


def differences(one: Mapping[str, Place], other: Mapping[str, Place]) -> Iterator[str]:
    """What differs between two checkpoints' tensors, in words, by name."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            yield f"{name}: only one of the two has it"
            continue
        here, there = one[name], other[name]
        if (here.dtype, here.shape) != (there.dtype, there.shape):
            yield f"{name}: {here.dtype} {list(here.shape)} and {there.dtype} {list(there.shape)}"
            continue
        pairs = enumerate(zip(here.chunks(), there.chunks(), strict=True))
        if found := next(((number, *pair) for number, pair in pairs if pair[0] != pair[1]), None):
            number, mine, theirs = found
            at = number * CHUNK_BYTES + next(i for i, byte in enumerate(mine) if byte != theirs[i])
            elements = prod(here.shape)
            element = at * elements // (here.last - here.first)
            yield f"{name}: the bits differ from element {element} of {elements} on"


def _places(file: Path) -> Iterator[tuple[str, Place]]:
    try:
        with file.open("rb") as stream:
            begin = 8 + int.from_bytes(stream.read(8), "little")
            for name, entry in parse_json(stream.read(begin - 8)).items():
                if name != "__metadata__":
                    first, last = entry["data_offsets"]
                    yield (
                        name,
                        Place(file, entry["dtype"], tuple(entry["shape"]), begin + first, begin + last),
                    )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(f"{file}: no safetensors file: {problem!r}") from problem
