"""The numbers beside tokens: where each document ends (`.idx`), which row of the source it was (`.row`).

No document is without a token, so the ends rise strictly in each file, up to its token count. Documents stand
in the order of the source, so the row numbers rise strictly over all files of a split.
"""

from __future__ import annotations

import io
import operator
import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import islice

from stoker.shards.format.manifest import ROW_BYTES, ImportedBooks, Manifest, beside

_PIECE = 1 << 16  # numbers looked at in one go


Flaw = tuple[str, str]  # a file's name, and what is wrong with it


def ends_flaw(manifest: Manifest, split: str, open_file: Callable[[str], io.RawIOBase]) -> Flaw | None:
    """The first `.idx` of a split that cannot be right, and why; None where none is. As row_flaw has it."""
    for tokens, told in manifest.bins(split):
        name = beside(tokens, "idx")
        with open_file(name) as file:
            last, fault = _follow(file, 0)
        if fault is not None:
            return name, f"document ends do not rise from document {fault} on"
        if last != told.tokens:
            return name, f"ends at token {last}, the manifest says {told.tokens}"
    return None


def row_flaw(manifest: Manifest, split: str, open_file: Callable[[str], io.RawIOBase]) -> Flaw | None:
    """The first file of a split whose numbers cannot be right, and why; None where they can.

    Files have the sizes that the manifest tells; `open_file` is given their names. Raises OSError.
    """
    books = manifest.books
    if isinstance(books, ImportedBooks):
        return None  # it has none
    last = -1
    for tokens, _ in manifest.bins(split):
        name = beside(tokens, "row")
        with open_file(name) as file:
            last, fault = _follow(file, last)
        if fault is not None:
            return name, f"row numbers do not rise from document {fault} on"
        if last >= books.rows:
            return name, f"row {last}, the source has {books.rows} rows"
    return None


def _follow(file: io.RawIOBase, last: int) -> tuple[int, int | None]:
    """The last number of a file, and near which place one is not above the one before; `last` comes first."""
    place = 0
    for numbers in _pieces(file):
        if numbers[0] <= last or not all(map(operator.lt, numbers, islice(numbers, 1, None))):
            return last, place
        last = numbers[-1]
        place += len(numbers)
    return last, None


def _pieces(file: io.RawIOBase) -> Iterator[array[int]]:
    while data := file.read(_PIECE * ROW_BYTES):
        numbers = array("Q", data)
        if sys.byteorder == "big":
            numbers.byteswap()
        yield numbers
