"""Reads the rows of log/metrics.jsonl that count in a run's history, piece by piece, as the log grows."""

from __future__ import annotations

import contextlib
import math
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from stoker.checkpoints.retention import History, counts
from stoker.store.errors import storage_errors
from stoker.store.record import parse_json

PIECE_BYTES = 1 << 18  # some 800 rows, which take a megabyte and a fiftieth of a second
KEYS = ("step", "loss", "position", "tokens", "tokens_per_s", "micro_batch", "data_wait_s")

Row = Mapping[str, Any]


def rows_of(log: Path, holding: bytes = b"", *, tail_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of a training log, or of its end, whose lines hold these bytes; none of a missing log.

    Skips lines that are torn or no rows. Raises StorageError for a log that cannot be read.
    """
    with contextlib.suppress(FileNotFoundError), storage_errors("read", log), log.open("rb") as lines:
        if tail_bytes is not None:
            lines.seek(max(0, lines.seek(0, os.SEEK_END) - tail_bytes))
        for line in lines:
            if holding in line and (row := _row_of(line)) is not None:
                yield row


def rows_at(log: Path, timeline: int, step: int) -> list[dict[str, Any]]:
    """Returns the rows of a step of a timeline; [] where it has none, or the log is missing.

    Looks at some thirty places of the log, however long: its rows are in the order of timeline and step.
    Raises StorageError for a log that cannot be read.
    """
    wanted: tuple[float, float] = timeline, step
    with contextlib.suppress(FileNotFoundError), storage_errors("read", log), log.open("rb") as lines:
        places = range(lines.seek(0, os.SEEK_END))
        place = bisect_left(places, wanted, key=lambda place: next(_after(lines, place), _END)[0])
        return [row for _, row in takewhile(lambda one: one[0] == wanted, _after(lines, place))]
    return []


_END = (math.inf, math.inf), dict[str, Any]()


def _after(lines: BinaryIO, place: int) -> Iterator[tuple[tuple[float, float], dict[str, Any]]]:
    """Yields timeline and step of each row from a place of a log on, and the row."""
    lines.seek(place)  # most places are inside of a line, whose rest is no row
    for line in lines:
        if (row := _row_of(line)) is not None:
            yield (row["timeline"], row["step"]), row


def _row_of(line: bytes) -> dict[str, Any] | None:
    """Returns a line's row; None for one that is torn or no row."""
    row: Any = None
    with contextlib.suppress(ValueError):
        row = parse_json(line)
    is_row = isinstance(row, dict) and type(row.get("step")) is type(row.get("timeline")) is int
    return row if is_row else None


@dataclass(frozen=True)
class Piece:
    """The next rows of steps, in the order of their steps. `is_anew`: forget all rows before these.
    `is_last`: there are no more now."""

    rows: tuple[Row, ...] = ()
    is_anew: bool = False
    is_last: bool = True


class StepRows:
    """Follows a log. A trainer that resumes cuts it: it is then read from its begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._history: History | None = None
        self._inode = self._offset = 0
        self._step = -1  # nanoGPT counts from 0
        self._last = b""  # the last line read: it stands before `_offset` as long as nothing was cut

    def read(self, history: History) -> Piece:
        """Returns the next rows; raises StorageError for a log that cannot be read."""
        missing = contextlib.suppress(FileNotFoundError)
        with missing, storage_errors("read", self._path), self._path.open("rb") as file:
            return self._read(file, [*history])
        is_anew = self._inode != 0
        self._begin([*history], 0)
        return Piece(is_anew=is_anew)

    def _begin(self, history: History, inode: int) -> None:
        self._history, self._inode, self._offset, self._step = history, inode, 0, -1
        self._last = b""

    def _read(self, file: BinaryIO, history: History) -> Piece:
        found = os.fstat(file.fileno())
        is_anew = (history, found.st_ino) != (self._history, self._inode) or self._is_cut(file)
        if is_anew:
            self._begin(history, found.st_ino)
        file.seek(self._offset)
        data = file.read(PIECE_BYTES)
        rows = list[Row]()
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == PIECE_BYTES else 0)
        for line in data[:whole].split(b"\n")[:-1]:
            if (row := self._counted(line)) is not None:
                rows.append(row)
            self._offset += len(line) + 1
            self._last = line
        if whole and not data[:whole].endswith(b"\n"):  # no row is so long
            self._offset, self._last = self._offset + whole, b""
        is_last = self._offset + len(data) - whole >= found.st_size
        return Piece(tuple(rows), is_anew, is_last)

    def _is_cut(self, file: BinaryIO) -> bool:
        if not self._last:
            return False
        file.seek(self._offset - len(self._last) - 1)
        return file.read(len(self._last) + 1) != self._last + b"\n"

    def _counted(self, line: bytes) -> Row | None:
        """Returns the row of a step that counts; None for another, and for an evaluation."""
        if b'"loss"' not in line:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn or unknown line
            row = parse_json(line)
            step = row["step"]
            if "loss" not in row or not counts(row["timeline"], step, self._history or ()):
                return None
            if step <= self._step:  # made again in a log that could not be cut: counted once
                return None
            self._step = step
            return {key: row[key] for key in KEYS if key in row}
        return None
