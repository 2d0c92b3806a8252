"""Two checkpoints tensor by tensor, bit by bit, read straight from their safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
        elif (at := _first_difference(here, there)) is not None:
            element = at * _elements(here) // (here.last - here.first)
            yield f"{name}: the bits differ from element {element} of {_elements(here)} on"


def _places(file: Path) -> Iterator[tuple[str, Place]]:
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = parse_json(stream.read(size))
            for name, told in header.items():
                if name != "__metadata__":
                    first, last = told["data_offsets"]
                    begin = 8 + size
                    yield name, Place(file, told["dtype"], tuple(told["shape"]), begin + first, begin + last)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(f"{file}: no safetensors file: {problem!r}") from problem


def _first_difference(one: Place, other: Place) -> int | None:
    """The offset of the first byte that differs; None where none does."""
    size = one.last - one.first
    if not size:
        return None
    with one.file.open("rb") as here, other.file.open("rb") as there:
        here.seek(one.first)
        there.seek(other.first)
        for begin in range(0, size, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, size - begin)
            mine, theirs = here.read(wanted), there.read(wanted)
            if mine != theirs:
                pairs = enumerate(zip(mine, theirs, strict=False))
                return begin + next((at for at, (left, right) in pairs if left != right), 0)
    return None


def _elements(place: Place) -> int:
    count = 1
    for extent in place.shape:
        count *= extent
    return max(1, count)
