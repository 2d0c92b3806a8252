"""The recording of a command's memory: a CSV with a row a moment, written whole row by row, and its reader.

The last row of a whole recording has the kind `exit`. Rows hold bytes and seconds; a figure that is not known
is empty.
"""

from __future__ import annotations

import csv
import io
import math
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from stoker.kit.terminal import harmless
from stoker.store.errors import DataError, UsageError, storage_errors
from stoker.store.files import write_all

Kind = Literal["sample", "mark", "signal", "exit"]
NOTE_CHARS = 4096  # of a mark or another note


@dataclass(frozen=True)
class Row:
    """A row; the names of its fields are the columns."""

    time: str  # UTC
    elapsed_s: float
    kind: Kind
    processes: int | None = None
    rss_bytes: int | None = None  # of the tree, as the sum over its processes
    pss_bytes: int | None = None
    peak_rss_bytes: int | None = None  # so far
    swap_bytes: int | None = None
    available_bytes: int | None = None  # on this machine and in its cgroups, before the kernel kills
    gpu_bytes: int | None = None
    arrow_bytes: int | None = None
    traced_bytes: int | None = None  # of Python objects, by tracemalloc
    exit_code: int | None = None
    signal: str = ""
    note: str = ""  # a mark's text; what was recorded; the lines of code that hold most


COLUMNS = tuple(field.name for field in fields(Row))
HEADER = (",".join(COLUMNS) + "\n").encode()


def csv_line(row: Row) -> bytes:
    """Returns the row as one line; a note is cut and its control characters are escaped."""
    cells = asdict(row) | {"note": harmless(row.note[:NOTE_CHARS]), "elapsed_s": f"{row.elapsed_s:.3f}"}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow("" if cell is None else cell for cell in cells.values())
    return out.getvalue().encode("utf-8", "replace")


class RecordingFile:
    """Appends whole rows to a new CSV. Where that fails, `say` hears of it once; later rows are tried."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Writes the header; raises UsageError for a file with content, StorageError or OSError."""
        self.path, self._say, self.lost = path, say, 0  # lost: rows
        with storage_errors("write", path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            found = os.fstat(self._fd)
            if found.st_size:
                raise UsageError(f"{path} exists; name a new file")
            self._end = 0 if stat.S_ISREG(found.st_mode) else None  # of the last whole row
            self._append(HEADER)

    def write(self, row: Row) -> None:
        """Appends the row; a failure takes back what the disk took of it."""
        try:
            self._append(csv_line(row))
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self._say(
                    f"cannot write {self.path}: {error.strerror}; rows are lost until it can be written"
                )

    def _append(self, data: bytes) -> None:
        try:
            write_all(self._fd, data)
        except OSError:
            if self._end is not None:
                os.ftruncate(self._fd, self._end)
            raise
        if self._end is not None:
            self._end += len(data)


def read_table(path: Path, needed: Collection[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields each row of a CSV with its line's number; a line that a crash tore is left out.

    Raises DataError for a file without the needed columns, or that is no CSV; StorageError, OSError.
    """
    with storage_errors("read", path), path.open(encoding="utf-8", errors="replace", newline="") as stream:
        reader = csv.reader(line for line in stream if line.endswith("\n"))
        try:
            columns = next(reader, [])
            if missing := [name for name in needed if name not in columns]:
                raise DataError(f"{path}: no column {missing[0]!r} in its first line; name a recording")
            for cells in reader:
                if len(cells) == len(columns):
                    yield reader.line_num, dict(zip(columns, cells, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: {error}") from error


def number(where: str, row: Mapping[str, str], column: str) -> float | None:
    """Returns the number in a cell, None for an empty one or no such column; raises DataError."""
    cell = row.get(column, "")
    try:
        value = float(cell) if cell else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise DataError(f"{where}: {column} holds {harmless(cell[:80])!r}, which is no number")
    return value
