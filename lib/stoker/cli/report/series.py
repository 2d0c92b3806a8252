"""Reads the numbers that a report draws: of a run's training log, and of the daemons' samples."""

from __future__ import annotations

import contextlib
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
LAST = 1 << 33  # a time in the year 2242, and more steps than a run makes
DRAWN = ("_rss_bytes", "_free_bytes", "gpu_memory_used_bytes", "gpu_utilization_ratio")  # of samples

Pairs = list[tuple[float, float]]


def points(pairs: Pairs) -> Points:
    """Returns the pairs in the order of their first values: a clock may have been set back."""
    table = np.array(sorted(pairs), dtype=float)
    return table[:, 0], table[:, 1]


def _add(pairs: Pairs, at: float, value: object) -> None:
    """Adds a value if it can be drawn."""
    if isinstance(value, int | float) and abs(value) < MOST_VALUE and 0 <= at <= LAST:
        pairs.append((at, float(value)))


@dataclass
class Steps:
    """Losses (step, nats) by timeline and kind; speeds (Unix seconds, tokens/s)."""

    losses: dict[tuple[int, str], Pairs] = field(default_factory=lambda: defaultdict(list))
    speeds: Pairs = field(default_factory=list)
    unread: int = 0  # lines that are no rows
    share: float = 1.0  # of the log that was read

    def add(self, line: bytes) -> None:
        try:
            row: Any = parse_json(line)
            timeline, step = int(row["timeline"]), float(row["step"])
            for name, kind in (("loss", "training"), ("val_loss", "held-out")):
                if name in row:
                    _add(self.losses[timeline, kind], step, row[name])
            if "tokens_per_s" in row and "time" in row:
                _add(self.speeds, unix(row["time"]), row["tokens_per_s"])
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
        size = stream.seek(0, os.SEEK_END)
        pieces = PIECES if size > most_bytes else 1
        length = min(size, most_bytes) // pieces
        for piece in range(pieces):
            stream.seek(begin := piece * (size - length) // max(1, pieces - 1))
            # The first line of a piece may have begun before it; the last is torn, or ends behind it.
            yield from stream.read(length).split(b"\n")[begin > 0 : -1]


def read_columns(path: Path) -> dict[str, Points]:
    """Returns the columns of a daemon's samples that are drawn, over Unix seconds, where something is known.

    Lines that are torn or no rows are left out.
    """
    found: dict[str, Pairs] = defaultdict(list)
    for file in (path.with_name(f"{path.name}.1"), path):
        for row in read_samples(file, FILE_BYTES):
            with contextlib.suppress(KeyError, OverflowError, ValueError):
                at = unix(row["time"])
                for name, text in row.items():
                    if text and name.endswith(DRAWN):
                        _add(found[name], at, float(text))
    return {name: points(pairs) for name, pairs in found.items() if pairs}
