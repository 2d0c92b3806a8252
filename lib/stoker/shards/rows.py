"""Row numbers of a split: which row of the source each document was, in `.row` files beside the `.idx`.

Documents stand in the order of the source, so the numbers rise strictly over all files of a split.
"""

from __future__ import annotations

import io
import operator
import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import islice

from stoker.shards.manifest import ROW_BYTES, ImportedBooks, Manifest, beside

_PIECE = 1 << 16  # numbers looked at in one go


def row_flaw(
    manifest: Manifest, split: str, open_file: Callable[[str], io.RawIOBase]
) -> tuple[str, str] | None:
    """The first file of a split whose numbers cannot be right, and why; None where they can.

    Files have the sizes that the manifest tells; `open_file` is given their names. Raises OSError.
    """
    books = manifest.books
    if isinstance(books, ImportedBooks):
        return None  # it has none
    last = -1
    for tokens, _ in manifest.bins(split):
        name, place = beside(tokens, "row"), 0
        with open_file(name) as file:
            for numbers in _pieces(file):
                if numbers[0] <= last or not all(map(operator.lt, numbers, islice(numbers, 1, None))):
                    return name, f"row numbers do not rise from document {place} on"
                last = numbers[-1]
                place += len(numbers)
        if last >= books.rows:
            return name, f"row {last}, the source has {books.rows} rows"
    return None


def _pieces(file: io.RawIOBase) -> Iterator[array[int]]:
    while data := file.read(_PIECE * ROW_BYTES):
        numbers = array("Q", data)
        if sys.byteorder == "big":
            numbers.byteswap()
        yield numbers
