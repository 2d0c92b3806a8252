"""What a reader of source files is: a module with the functions of `Reader`, named in `table.READERS`.

A position in a file is a row group and a row in it. A format without row groups has one, or makes its own: a
build commits by positions, and bytes before a row group are not read again. Heavy (pyarrow): for workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.corpus.readers.finding import Finding
from stoker.corpus.readers.table import READERS, Tokens, suffix_of


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of one row group."""

    row_group: int
    row: int  # the first row's place in the row group
    columns: pa.RecordBatch  # the text column and the columns that steps read
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
        return type(self)(
            self.row_group,
            self.row + skip,
            self.columns.slice(skip),
            self.texts[skip:],
            self.utf8[skip:],
        )


class TokenBatch(Batch):
    """Rows of token ids: `texts` and `utf8` are both the views of each row's ids; a row has no characters."""

    @cached_property
    def chars(self) -> npt.NDArray[np.int64]:
        return np.zeros(self.rows, dtype=np.int64)


class Rows(Protocol):
    """The rows of one open file. Each method raises BadFile, StorageError or Transient, as `open_rows`."""

    @property
    def groups(self) -> Sequence[int]:
        """The row groups that have rows: places to take a sample from."""

    def batches(self, row_group: int = 0, row: int = 0) -> Iterator[Batch]:
        """Yields every batch from this position on; a batch is not empty."""

    def after(self, batch: Batch) -> tuple[int, int]:
        """Returns the position behind a batch, at a row group's end row 0 of the next."""

    def row_numbers(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Returns the row number of each row of a batch in the file, counted from 0 over all row groups."""

    def read_up_to(self, row_group: int) -> int:
        """Returns how many bytes, from the file's first, are not read again after this row group."""


class Reader(Protocol):
    """The functions of a reader's module."""

    def open_rows(
        self,
        path: Path,
        text_column: str,
        columns: Mapping[str, str] = {},
        read_rows: int = 250,
        tokens: Tokens | None = None,
    ) -> Rows:
        """Opens a file to read its text, and the columns that steps read, each "text" or "number".

        With `tokens` the text column holds token ids, one document a row. `read_rows` asks for so many rows
        of some four kilobytes in a batch. Raises BadFile for wrong content, StorageError where the file
        cannot be read, Transient where a second reading contradicts the first.
        """

    def preflight(
        self,
        path: Path,
        text_column: str,
        columns: Mapping[str, str] = {},
        *,
        tokens: Tokens | None = None,
        decode: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        past_cache: bool = False,
    ) -> Finding | None:
        """Returns the first flaw of the file, None where there is none; with `decode` all of it is read.

        `progress` gets the row groups done. Raises OSError when the file cannot be read now, MemoryError
        where memory is short, Transient where a second reading contradicts the first: none is evidence.
        """

    def text_bytes(self, path: Path, text_column: str, tokens: Tokens | None = None) -> int:
        """Returns the bytes of text in a file that has no flaw, unpacked, or an estimate; or its tokens."""

    def tables(self, path: Path, most: int) -> Iterator[pa.Table]:
        """Yields the first rows with all columns, `most` at most, in batches of bounded size."""


def reader_of(path: Path) -> Reader:
    """Returns the reader of a file, by its name."""
    return cast(Reader, import_module(READERS[suffix_of(path.name)]))
