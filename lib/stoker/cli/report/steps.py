"""Reads what a run's training log says of its steps: all of a log, or of a long one pieces spread over it."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.observe.pace import unix
from stoker.store.errors import storage_errors
from stoker.store.record import parse_json

MOST_BYTES, PIECES = 32 << 20, 512  # some 100,000 rows, which take some three seconds

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
            timeline, step = row["timeline"], float(row["step"])
            if (loss := _number(row, "loss")) is not None:
                self.trained[timeline].append((step, loss))
            if (loss := _number(row, "val_loss")) is not None:
                self.heldout[timeline].append((step, loss))
            if (speed := _number(row, "tokens_per_s")) is not None and "time" in row:
                self.speeds.append((unix(row["time"]), speed))
        except (KeyError, TypeError, ValueError):
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
        begins = range(0, size - length + 1, (size - length) // (PIECES - 1)) if size > most_bytes else (0,)
        for begin in begins:
            stream.seek(begin)
            if begin:
                stream.readline(length)  # the end of a line that began before
            while len(begins) == 1 or stream.tell() < begin + length:
                line = stream.readline(length)
                if not line.endswith(b"\n"):  # the last is being written, or was torn
                    break
                yield line


def _number(row: Any, name: str) -> float | None:
    value = row.get(name)
    return float(value) if type(value) in (int, float) else None
