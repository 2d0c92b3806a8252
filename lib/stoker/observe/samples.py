"""Keeps a table of samples on disk: a row a minute, for months, in little room.

The newest rows are in the file, older ones in `<file>.1`, the older the further apart: when the file is full,
every second row of both stays, in `<file>.1`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.observe.machine import Pressure
from stoker.store.errors import storage_errors
from stoker.store.files import append_line, unlink_durably, write_atomic

FILE_BYTES = 4 << 20  # of each of the two files
TAIL_BYTES = 1 << 20  # more than the rows of a day


def sample(
    time: str, elapsed_s: float, status: Mapping[str, Any], pressure: Pressure | None
) -> dict[str, Any]:
    """Returns a daemon's row: its processes by role, memory to spare, disks, waits and GPUs of its status.

    Of the GPUs it has the memory in use together, and the mean utilisation; of the data, how much is done.
    None for what is not known.
    """
    row: dict[str, Any] = {"time": time, "elapsed_s": round(elapsed_s)}
    for role, each in status["processes"].items():
        row |= {f"{role}_{what}_bytes": each[f"{what}_bytes"] for what in ("rss", "pss", "swap")}
    row["processes"] = sum(each["count"] for each in status["processes"].values())
    row["headroom_bytes"] = status["headroom_bytes"]
    row |= {f"{name}_free_bytes": disk.get("free_bytes") for name, disk in status["disks"].items()}
    for name in ("cpu_some", "io_some", "memory_some"):
        row[name] = _rounded(getattr(pressure, name, None))
    gpus = status.get("gpus", {})
    used, busy = (
        [value for value in gpus.get(name, {}).values() if value is not None]
        for name in ("memory_used_bytes", "utilization_ratio")
    )
    row["gpu_memory_used_bytes"] = sum(used) if used else None
    row["gpu_utilization_ratio"] = _rounded(sum(busy) / len(busy)) if busy else None
    if "bytes_done" in status:
        row["bytes_done"] = status["bytes_done"]
    return row


class Samples:
    """The only writer of a table: lines of comma-separated values below a header with their names."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path, self._older = path, path.with_name(f"{path.name}.1")
        self._file_bytes = file_bytes

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row; None is an empty value, and columns unlike the last row's begin a new file.

        Raises StorageError, or FileNotFoundError without the directory.
        """
        header = ",".join(row).encode()
        values = ",".join("" if value is None else str(value) for value in row.values()).encode()
        before = _header(self._path)
        if before and (before != header or self._path.stat().st_size + len(values) >= self._file_bytes):
            self._rotate()
            before = b""
        if not before:
            append_line(self._path, header)
        append_line(self._path, values)

    def _rotate(self) -> None:
        header = _header(self._path)
        with storage_errors("rotate", self._path):
            if _header(self._older) != header:
                self._path.rename(self._older)
                return
            rows = (row for file in (self._older, self._path) for row in _rows(file))
            # A crash after this write leaves rows twice, which no reader minds.
            write_atomic(self._older, b"\n".join((header, *islice(rows, 0, None, 2), b"")), durable=False)
        unlink_durably(self._path)


def read_samples(path: Path, tail_bytes: int = TAIL_BYTES) -> Iterator[Mapping[str, str]]:
    """Yields the rows of a table's end, oldest first, values by column; "" is a value that was not known.

    Yields nothing of a table that is missing or cannot be read, and no line that is torn.
    """
    with contextlib.suppress(OSError), path.open("rb") as stream:
        names = stream.readline().decode(errors="replace").rstrip("\n").split(",")
        start = stream.tell()
        if (end := stream.seek(0, os.SEEK_END)) - tail_bytes > start:
            stream.seek(end - tail_bytes)
            stream.readline()
        else:
            stream.seek(start)
        for line in stream:
            values = line.decode(errors="replace").rstrip("\n").split(",")
            if len(values) == len(names) and line.endswith(b"\n"):
                yield dict(zip(names, values, strict=True))


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _header(file: Path) -> bytes:
    """Returns a table's first line; empty without a table."""
    try:
        with storage_errors("read", file), file.open("rb") as stream:
            return stream.readline().rstrip(b"\n")
    except FileNotFoundError:
        return b""


def _rows(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        for row in islice(stream, 1, None):
            yield row.rstrip(b"\n")
