"""Parts of a plan entry: ranges of a dataset's stream, which follow each other without gap or overlap."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_HEX64 = re.compile(r"[0-9a-f]{64}")

SetPair = tuple[str, str]  # set key, sha256 of its manifest.json


@dataclass(frozen=True, slots=True)
class Part:
    """Windows of the train streams of `sets`, one after the other, from token `first` of the first set on.

    Raises ValueError unless each of `sets` is two sha256 in hex.
    """

    dataset: str
    epoch: int
    sets: Sequence[SetPair]
    first: int
    windows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", tuple(map(as_pair, self.sets)))

    def stop(self, seq_len: int) -> int:
        """Returns the token of its stream with which the next part begins: its last window's last target."""
        return self.first + self.windows * seq_len

    def fits(self, seq_len: int, tokens: Sequence[int]) -> bool:
        """Whether its windows lie within its sets, of so many tokens each, and read of every one."""
        inside = sum(tokens[:-1]) <= self.stop(seq_len) < sum(tokens)
        return inside and self.first < tokens[0] and all(tokens)


def as_pair(pair: Sequence[str]) -> SetPair:
    if not (isinstance(pair, list | tuple) and len(pair) == 2):
        raise ValueError("sets is not a list of [key, manifest sha256]")
    key, manifest = hex64(pair[0], "set key"), hex64(pair[1], "manifest sha256")
    return sys.intern(key), sys.intern(manifest)  # later epochs name the same sets again


def hex64(value: object, what: str) -> str:
    if not (isinstance(value, str) and _HEX64.fullmatch(value)):
        raise ValueError(f"{what}={value!r} is not a sha256 in hex")
    return value
