"""Recognises and reads what `datasets.save_to_disk` wrote: a column of lists of tokens in Arrow streams.

The rows of a FixedSizeList are one stream, cut anywhere; a row of a List is whole documents.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.corpus.readers.token_lists import LISTS
from stoker.exchange.token_files import plain_stat, read_note, unchanged
from stoker.exchange.token_stream import Piece, TokenFiles
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened

STATE, SPLITS_NOTE = "state.json", "dataset_dict.json"
COLUMNS = ("input_ids", "tokens")  # looked for in this order where none is named
SPLIT_NAMES = {"train": "train", "val": "val", "validation": "val"}
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class ArrowFile:
    """An Arrow stream; `tokens` is how many its column can hold at most."""

    path: Path
    column: str
    tokens: int
    size: int
    mtime_ns: int

    def pieces(self) -> Iterator[Piece]:
        """Yields a piece a record batch; raises DataError, StorageError."""
        row = 0
        with _stream(self.path) as (descriptor, stream):
            if os.pread(descriptor, 8, max(0, self.size - 8)) != END_OF_STREAM:
                raise DataError(f"{self.path}: it is truncated: its Arrow stream has no end")
            for batch in stream:
                column = batch.column(self.column)
                column.validate(full=True)
                yield self._piece(column, row)
                row += len(column)
            unchanged(self.path, descriptor, self.size, self.mtime_ns)

    def _piece(self, column: Any, row: int) -> Piece:
        if column.null_count:
            null = int(np.flatnonzero(column.is_null())[0])
            raise DataError(f"{self.path}: row {row + null} is null; leave it out")
        values, kind = column.flatten(), column.type
        if pa.types.is_fixed_size_list(kind):
            piece = Piece(self.path, values.to_numpy(zero_copy_only=False), row, row_length=kind.list_size)
        else:
            ends = np.cumsum(pc.list_value_length(column), dtype=np.int64)
            piece = Piece(self.path, values.to_numpy(zero_copy_only=False), row, row_ends=ends)
        if values.null_count:
            null = int(np.flatnonzero(values.is_null())[0])
            raise DataError(f"{piece.place(null)} holds a null; tokens are numbers")
        return piece


def find_arrow(place: Path, split: str, column: str | None) -> TokenFiles | None:
    """Returns the files of a split, None where the place is no such directory.

    A Dataset has one split, whichever it is. Raises DataError, OSError.
    """
    if (place / SPLITS_NOTE).exists():
        names = read_note(place / SPLITS_NOTE).get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{place / SPLITS_NOTE}: it lists no splits")
        taken = [name for name in names if split in ("all", SPLIT_NAMES.get(name))]
        left_out = tuple(
            f"{place / name}: passed over by --split {split}" for name in names if name not in taken
        )
        parts = [_dataset(place / name, column) for name in taken]
        return TokenFiles(tuple(file for part in parts for file in part), notes=left_out)
    return TokenFiles(_dataset(place, column)) if (place / STATE).exists() else None


def _dataset(place: Path, column: str | None) -> tuple[ArrowFile, ...]:
    state = read_note(place / STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise DataError(f"{place}: its rows are chosen by indices; save it with flatten_indices()")
    try:
        names = [str(file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{place / STATE}: it lists no data files: {error!r}") from error
    if wrong := next((name for name in names if "/" in name or name.startswith(".")), None):
        raise DataError(f"{place / STATE}: {wrong!r} is no name of a file beside it")
    return tuple(_file(place / name, column) for name in names)


def _file(path: Path, column: str | None) -> ArrowFile:
    found = plain_stat(path)
    with _stream(path) as (_, stream):
        schema = stream.schema
    names = [name for name in ((column,) if column else COLUMNS) if name in schema.names]
    if not names:
        wanted = column or " or ".join(COLUMNS)
        raise DataError(
            f"{path}: no column {wanted}; name the tokens' with --column: {', '.join(schema.names)}"
        )
    kind = schema.field(names[0]).type
    is_list = any(is_kind(kind) for is_kind in LISTS)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise DataError(f"{path}: column {names[0]} is {kind}, and tokens are lists of whole numbers")
    return ArrowFile(
        path, names[0], found.st_size * 8 // kind.value_type.bit_width, found.st_size, found.st_mtime_ns
    )


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the open descriptor and the stream; raises DataError where it is none, StorageError."""
    with storage_errors("read", path), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        try:
            with open(descriptor, "rb", closefd=False) as file:
                yield descriptor, pa.ipc.open_stream(file)
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's; Arrow's own for a file that ends too early has no number
            raise DataError(f"{path}: no whole Arrow stream: {error}") from error
