"""Reads the numbers that a report draws: of a run's training log, and of the daemons' samples."""

from __future__ import annotations

import contextlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stoker.observe.drawing import Points
from stoker.observe.pace import unix
from stoker.observe.samples import FILE_BYTES, read_samples
from stoker.store.errors import storage_errors
from stoker.store.record import parse_json

MOST_BYTES, PIECES = 32 << 20, 512  # of a training log: some 100,000 rows, which take some three seconds
MOST_VALUE = 1e30  # larger ones cannot be drawn
LAST_S = 1 << 33  # in the year 2242
DRAWN = ("_rss_bytes", "_free_bytes", "gpu_memory_used_bytes", "gpu_utilization_ratio")  # of samples

Pairs = list[tuple[float, float]]


def points(pairs: Pairs) -> Points:
    """Returns the pairs in the order of their first values: a clock may have been set back."""
    table = np.array(sorted(pairs), dtype=float)
    return table[:, 0], table[:, 1]


def moment(text: str) -> float:
    """Returns the Unix seconds of a time; raises ValueError also where no picture could show it."""
    if not 0 <= (at := unix(text)) <= LAST_S:
        raise ValueError(f"{text} is no time of this log")
    return at


@dataclass
class Steps:
    """Losses by timeline (step, nats), speeds (Unix seconds, tokens/s); `share` of the log that was read."""

    trained: dict[int, Pairs] = field(default_factory=lambda: defaultdict(list))
    heldout: dict[int, Pairs] = field(default_factory=lambda: defaultdict(list))
    speeds: Pairs = field(default_factory=list)
    unread: int = 0  # lines that are no rows
    share: float = 1.0

    def add(self, line: bytes) -> None:
        try:
            row: Any = parse_json(line)
            timeline, step = row["timeline"], float(row["step"])
            if type(timeline) is not int:
                raise TypeError(timeline)  # noqa: TRY301
            for losses, name in ((self.trained, "loss"), (self.heldout, "val_loss")):
                if (loss := _number(row, name)) is not None:
                    losses[timeline].append((step, loss))
            if (speed := _number(row, "tokens_per_s")) is not None and "time" in row:
                self.speeds.append((moment(row["time"]), speed))
        except (KeyError, OverflowError, TypeError, ValueError):
            self.unread += 1


def read_steps(log: Path, most_bytes: int = MOST_BYTES) -> Steps:
    """Returns the steps of a training log, none of a missing one; raises StorageError."""
    found = Steps()
    with contextlib.suppress(FileNotFoundError), storage_errors("read", log):
        found.share = min(1.0, most_bytes / max(1, log.stat().st_size))
        for line in _lines(log, most_bytes):
            found.add(line)
    return found


def _lines(log: Path, most_bytes: int) -> Iterator[bytes]:
    """Yields the whole lines of a log, or of a longer one those of pieces spread evenly over it."""
    with log.open("rb") as stream:
        size, length = os.fstat(stream.fileno()).st_size, most_bytes // PIECES
        is_long = size > most_bytes
        begins = [n * (size - length) // (PIECES - 1) for n in range(PIECES)] if is_long else [0]
        for begin in begins:
            stream.seek(begin)
            if begin:
                stream.readline(length)  # the end of a line that began before
            while not is_long or stream.tell() < begin + length:
                line = stream.readline(length)
                if not line.endswith(b"\n") and len(line) < length:
                    break  # the last line is being written, or was torn
                yield line


def _number(row: Any, name: str) -> float | None:
    value = row.get(name)
    return float(value) if type(value) in (int, float) and abs(value) < MOST_VALUE else None


def read_columns(path: Path) -> dict[str, Points]:
    """Returns the columns of a daemon's samples that are drawn, over Unix seconds, where something is known.

    Lines that are torn or no rows are left out.
    """
    found: dict[str, Pairs] = defaultdict(list)
    for file in (path.with_name(f"{path.name}.1"), path):
        for row in read_samples(file, FILE_BYTES):
            with contextlib.suppress(KeyError, ValueError):
                at = moment(row["time"])
                known = {name: float(row[name]) for name in row if name.endswith(DRAWN) and row[name]}
                for name, value in known.items():
                    if math.isfinite(value):
                        found[name].append((at, value))
    return {name: points(pairs) for name, pairs in found.items()}
