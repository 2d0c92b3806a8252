"""Reads what a run's training log says of its steps: all of a log, or of a long one pieces spread over it."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cli.report.samples import moment
from stoker.store.errors import storage_errors
from stoker.store.record import parse_json

MOST_BYTES, PIECES = 32 << 20, 512  # some 100,000 rows, which take some three seconds
MOST_VALUE = 1e30  # larger ones cannot be drawn

Pairs = list[tuple[float, float]]


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
            timeline, step = row["timeline"], row["step"]
            if not type(timeline) is type(step) is int:
                raise ValueError("no row of a step")  # noqa: TRY301
            at = float(step)
            for losses, name in ((self.trained, "loss"), (self.heldout, "val_loss")):
                if (loss := _number(row, name)) is not None:
                    losses[timeline].append((at, loss))
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
    """Yields the whole lines of a log, or of pieces of it whose begins have the same distance."""
    with log.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = most_bytes // PIECES
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
