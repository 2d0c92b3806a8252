"""Mappings by path that hold fifty thousand small things in a few megabytes, for a daemon that stays small.

An object with its words and numbers takes some 500 bytes, a cell of a few numbers and raw sums 40 to 80. What
does not go into a cell is kept as it is. Things come out as equal objects, made anew each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, ItemsView, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Generic, Protocol, TypeVar, overload

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
D = TypeVar("D")


class Codec(Protocol[T]):
    """How a thing of a path goes into a cell of `width` bytes, never all zero, and comes out again."""

    width: int

    def pack(self, path: str, thing: T) -> bytes | None:
        """Its cell; None for one that would not come out equal."""

    def unpack(self, path: str, cell: bytes) -> T:
        """What was packed."""


class Words(Generic[H]):
    """Numbers for what many things have in common."""

    def __init__(self) -> None:
        self._words: list[H] = []
        self._numbers: dict[H, int] = {}

    def number(self, word: H) -> int:
        """The word's number."""
        number = self._numbers.setdefault(word, len(self._words))
        if number == len(self._words):
            self._words.append(word)
        return number

    def __getitem__(self, number: int) -> H:
        return self._words[number]


class Packed(Mapping[str, T]):
    """Things by path, in path order; of several for one path the last counts."""

    def __init__(self, codec: Codec[T], things: Iterable[tuple[str, T]] = ()) -> None:
        self._codec = codec
        self._paths: list[str] = []
        self._cells = bytearray()
        self._odd: dict[str, T] = {}
        self._disorder = False
        self.extend(things)

    def extend(self, things: Iterable[tuple[str, T]]) -> None:
        """Take in many: they are put into order once, when that matters."""
        last = self._paths[-1] if self._paths else None
        for path, thing in things:
            self._disorder = self._disorder or (last is not None and path <= last)
            last = path
            self._paths.append(path)
            self._cells += self._cell(path, thing)

    def put(self, path: str, thing: T) -> None:
        """Take in one, or another for its path."""
        at, width = self.place(path), self._codec.width
        if at < 0:
            at = bisect_left(self._paths, path)
            self._paths.insert(at, path)
            self._cells[at * width : at * width] = self._cell(path, thing)
        else:
            self._cells[at * width : (at + 1) * width] = self._cell(path, thing)

    def own(self, path: str) -> str:
        """The very string that a path is called by here, where there is one: two of each are megabytes."""
        at = self.place(path)
        return path if at < 0 else self._paths[at]

    def place(self, path: str) -> int:
        """Which it is in path order, from 0; -1 for none."""
        self._sort()
        at = bisect_left(self._paths, path)
        return at if at < len(self._paths) and self._paths[at] == path else -1

    def first(self, most: int | None) -> Packed[T]:
        """The first so many; these themselves where there are no more."""
        if most is None or most >= len(self):
            return self
        part = Packed(self._codec)
        part._paths = self._paths[:most]
        part._cells = self._cells[: most * self._codec.width]
        part._odd = {path: self._odd[path] for path in part._paths if path in self._odd}
        return part

    # A mapping

    @overload
    def get(self, path: str, /) -> T | None: ...
    @overload
    def get(self, path: str, /, default: T | D) -> T | D: ...
    def get(self, path: str, /, default: object = None) -> object:
        """As a dictionary's."""
        at = self.place(path)
        return default if at < 0 else self._thing(at)

    def __getitem__(self, path: str) -> T:
        at = self.place(path)
        if at < 0:
            raise KeyError(path)
        return self._thing(at)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.place(path) >= 0

    def __iter__(self) -> Iterator[str]:
        self._sort()
        return iter(self._paths)

    def __len__(self) -> int:
        self._sort()
        return len(self._paths)

    def items(self) -> ItemsView[str, T]:
        """As a dictionary's."""
        return _Items(self)

    def in_order(self) -> Iterator[tuple[str, T]]:
        """Each path with its thing."""
        self._sort()
        return ((path, self._thing(at)) for at, path in enumerate(self._paths))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Packed) and self._codec is other._codec:
            self._sort()
            other._sort()
            return (self._paths, self._cells, self._odd) == (other._paths, other._cells, other._odd)
        return dict(self.items()) == other

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _cell(self, path: str, thing: T) -> bytes:
        cell = self._codec.pack(path, thing)
        if cell is not None:
            self._odd.pop(path, None)
            return cell
        self._odd[path] = thing
        return bytes(self._codec.width)

    def _thing(self, at: int) -> T:
        width = self._codec.width
        cell, path = bytes(self._cells[at * width : (at + 1) * width]), self._paths[at]
        if self._odd and not cell.strip(b"\0"):
            return self._odd[path]
        return self._codec.unpack(path, cell)

    def _sort(self) -> None:
        if not self._disorder:
            return
        self._disorder = False
        paths, cells, width = self._paths, self._cells, self._codec.width
        order = sorted(range(len(paths)), key=paths.__getitem__)  # of equal ones the last stays behind
        last = [
            at for at, after in zip_longest(order, order[1:]) if after is None or paths[at] != paths[after]
        ]
        self._paths, self._cells = [paths[at] for at in last], bytearray(len(last) * width)
        for place, at in enumerate(last):
            self._cells[place * width : (place + 1) * width] = cells[at * width : (at + 1) * width]


class _Items(ItemsView[str, T]):
    """Without a search for each."""

    _mapping: Packed[T]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return self._mapping.in_order()


class Chosen(Mapping[str, T]):
    """Some of a mapping's things, in the order they were chosen in, and perhaps others beside them.

    To go through all of them looks each one up; where that is done often, count what is needed of them.
    """

    def __init__(self, of: Mapping[str, T], paths: Iterable[str] = ()) -> None:
        self._of = of
        self._paths = dict.fromkeys(paths)
        self._others: dict[str, T] = {}

    def put(self, path: str, thing: T) -> None:
        """One that the mapping does not hold."""
        self._paths[path] = None
        self._others[path] = thing

    def drop(self, path: str) -> None:
        """Not this one any more."""
        self._paths.pop(path, None)
        self._others.pop(path, None)

    def __getitem__(self, path: str) -> T:
        if path not in self._paths:
            raise KeyError(path)
        return self._others[path] if path in self._others else self._of[path]

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def raw(digits: str, size: int) -> bytes | None:
    """A sum's bytes; None for what is not exactly so many of them in small hexadecimal digits."""
    if len(digits) != 2 * size:
        return None
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        return None
    return found if found.hex() == digits else None
