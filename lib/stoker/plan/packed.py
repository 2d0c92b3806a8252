"""Named shard sets in 64 bytes each: a plan of 50,000 sets is held by every daemon and trainer all along."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

_HASH = 32  # bytes of a sha256
_PAIR = 2 * _HASH
_HEX_PAIR = re.compile(r"[0-9a-f]{128}")

SetPair = tuple[str, str]


class PackedSets(Sequence[SetPair]):
    """(set key, sha256 of its manifest.json) pairs, both 64 hex digits; equal to any sequence of the same."""

    __slots__ = ("_raw",)

    def __init__(self, pairs: Iterable[Sequence[str]]) -> None:
        """Pack pairs; ValueError where one is not two sha256 in hex."""
        if isinstance(pairs, PackedSets):
            self._raw: bytes = pairs._raw
            return
        self._raw = b"".join(map(_packed, pairs))

    def __len__(self) -> int:
        return len(self._raw) // _PAIR

    @overload
    def __getitem__(self, index: int) -> SetPair: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SetPair, ...]: ...

    def __getitem__(self, index: int | slice) -> SetPair | tuple[SetPair, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index] * _PAIR
        text = self._raw[place : place + _PAIR].hex()
        return text[:_PAIR], text[_PAIR:]

    def __iter__(self) -> Iterator[SetPair]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedSets):
            return self._raw == other._raw
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _packed(pair: Sequence[str]) -> bytes:
    if not (
        isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(word, str) for word in pair)
    ):
        raise ValueError("sets is not a list of [key, manifest sha256]")
    key, manifest = pair
    if len(key) != _PAIR or not _HEX_PAIR.fullmatch(key + manifest):
        raise ValueError(f"set key {key!r} or manifest sha256 {manifest!r} is not a sha256 in hex")
    return bytes.fromhex(key + manifest)
