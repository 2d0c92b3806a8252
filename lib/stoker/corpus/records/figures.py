"""The books of a shard set as they are held in memory: 50,000 of them as dictionaries would take 70 MB."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = ("rows", "documents", "chars", "tokens")
_SPLITS = ("train", "val")
_STREAM = ("documents", "tokens")
_KEYS = frozenset((*_NAMES, *_SPLITS, "dropped"))
_FIXED = 8  # figures before those of what was dropped

# Which filters dropped rows is the same for most sources; the names are held once.
_reasons: dict[tuple[str, ...], tuple[str, ...]] = {}


class PackedBooks(Mapping[str, Any]):
    """Read like the mapping it was made of, and equal to it."""

    __slots__ = ("_figures", "_names")

    def __init__(self, figures: bytes, names: tuple[str, ...]) -> None:
        self._figures, self._names = figures, names

    @property
    def figures(self) -> tuple[int, ...]:
        """Rows, documents, chars and tokens; documents and tokens of train, of val; the dropped rows."""
        return _struct(len(self._names)).unpack(self._figures)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What rows were dropped for, in the order of the figures."""
        return self._names

    def __getitem__(self, key: str) -> Any:
        figures = self.figures
        if key == "dropped":
            return dict(zip(self._names, figures[_FIXED:], strict=True))
        if key in _SPLITS:
            at = 4 + 2 * _SPLITS.index(key)
            return {"documents": figures[at], "tokens": figures[at + 1]}
        if key not in _KEYS:
            raise KeyError(key)
        return figures[_NAMES.index(key)]

    def __iter__(self) -> Iterator[str]:
        return iter((*_NAMES[:2], "dropped", *_NAMES[2:], *_SPLITS))

    def __len__(self) -> int:
        return len(_KEYS)

    def __repr__(self) -> str:
        return repr(dict(self))


def packed(books: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The books in little room; as they are where they hold anything else, or something is not known."""
    if books is None or isinstance(books, PackedBooks) or len(books) != len(_KEYS):
        return books
    try:
        dropped, train, val = books["dropped"], books["train"], books["val"]
        if len(train) != len(_STREAM) or len(val) != len(_STREAM):
            return books
        figures = _struct(len(dropped)).pack(
            *(books["rows"], books["documents"], books["chars"], books["tokens"]),
            *(train["documents"], train["tokens"], val["documents"], val["tokens"]),
            *dropped.values(),
        )
    except (KeyError, TypeError, AttributeError, struct.error):
        return books  # no books as we know them: whoever reads them will say so
    names = tuple(dropped)
    return PackedBooks(figures, _reasons.setdefault(names, names))


@functools.cache
def _struct(reasons: int) -> struct.Struct:
    return struct.Struct(f"<{_FIXED + reasons}Q")
