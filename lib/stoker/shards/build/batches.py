"""Batches of documents: the parquet reader makes them, the filters select from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of one row group."""

    row_group: int
    row: int  # the first row's place in the row group
    columns: pa.RecordBatch  # the text column and the columns that filters read
    texts: Sequence[str | None]
    utf8: Sequence[memoryview]  # views of the texts' bytes in Arrow's buffer, empty for null

    @property
    def rows(self) -> int:
        return len(self.texts)

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which rows have a text; shape (rows,)."""
        if None not in self.texts:
            return np.ones(self.rows, dtype=bool)
        return np.array([text is not None for text in self.texts], dtype=bool)

    @cached_property
    def chars(self) -> npt.NDArray[np.int64]:
        """Each row's length in Unicode code points, 0 for null; shape (rows,)."""
        return np.array([len(text or "") for text in self.texts], dtype=np.int64)

    def from_row(self, row: int) -> Batch:
        """Returns the rest of the batch from this row of its row group on."""
        skip = max(0, row - self.row)
        if not skip:
            return self
        return Batch(
            self.row_group,
            self.row + skip,
            self.columns.slice(skip),
            self.texts[skip:],
            self.utf8[skip:],
        )


def decode_text(column: pa.Array) -> tuple[list[str | None], list[memoryview]]:
    """Returns the texts and bytes of a string or large_string array.

    Raises ValueError for bytes that are not UTF-8.

    Decoding checks UTF-8 anyway; a check beforehand takes as long again. numpy conversion is avoided: Arrow
    would load pandas for it where pandas is installed.
    """
    if not len(column):
        return [], []
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
    places = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(b"" if data is None else data)
    utf8 = [view[start:end] for start, end in pairwise(places)]
    if column.null_count:
        for row in np.flatnonzero(np.array(column.is_null().to_pylist(), dtype=bool)).tolist():
            utf8[row] = view[:0]
    texts: list[str | None] = column.to_pylist()
    return texts, utf8
