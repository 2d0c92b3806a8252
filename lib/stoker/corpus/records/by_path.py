"""Mappings by path, in path order: the order of a listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")


def by_path(things: Iterable[tuple[str, T]]) -> dict[str, T]:
    """The things by path, in path order; of several for one path the last."""
    return dict(sorted(dict(things).items(), key=itemgetter(0)))


def first(things: Mapping[str, T], most: int | None) -> Mapping[str, T]:
    """The first so many; the mapping itself where there are no more."""
    return things if most is None or most >= len(things) else dict(islice(things.items(), most))
