"""Writes log/metrics.jsonl: the metrics of each step, with one row per step in a timeline."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.retention import History
from stoker.store.files import make_dir, write_all
from stoker.store.record import parse_json
from stoker.supervise.run.early_stop import read_evaluations

CUT_BYTES = 1 << 20  # of the log's end, in which rows to remove are looked for at once
# The fields of a row that differ between equal runs.
TIMED = frozenset(
    {"time", "tokens_per_s", "mfu", "data_wait_s", "save_stall_s", "memory_bytes", "alloc_retries"}
)


class RowLog:
    """Appends rows of a timeline to a run's metrics log, as its only writer.

    A row has reached the kernel when `append` returns, and the disk after `sync`.
    """

    def __init__(self, path: Path, timeline: int) -> None:
        self._timeline = timeline
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row with its timeline, and returns it; infinity and nan become null. Raises OSError."""
        body = {name: None if _is_endless(value) else value for name, value in row.items()}
        body["timeline"] = self._timeline
        write_all(self._fd, json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        return body

    def sync(self) -> None:
        """Makes the rows written so far durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class MetricsLog(RowLog):
    """The metrics log of the built-in trainer; `history` is the ancestry of the current timeline.

    Opening the log removes the rows of the current timeline beyond `resume_step` (0: the start), which a
    killed launch left, and evaluations that were not finite: both are made again. Rows of other timelines
    stay.
    """

    def __init__(self, path: Path, *, history: History = ((0, None),), resume_step: int) -> None:
        make_dir(path.parent)
        cut_end(path, history[0][0], resume_step)
        self.evaluations = read_evaluations(path, history, resume_step)
        super().__init__(path, history[0][0])

    def evaluated(self, step: int) -> bool:
        """Returns whether the current history has a finite held-out loss at the step."""
        return self.evaluations.get(step, (None, None))[0] is not None

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        body = super().append(row)
        if "val_loss" in row:
            self.evaluations[row["step"]] = body["val_loss"], body.get("val_stderr")
        return body


def cut_end(path: Path, timeline: int, resume_step: int) -> None:
    """Removes what a killed launch left at the log's end, and an evaluation that was not finite.

    That is the timeline's rows beyond the resume step, and unreadable lines.

    Looks at no more than that end, up to the first row that stays: in a log whose steps only rise within a
    timeline nothing before it goes, and a daemon that has no minute for all rows of a year may call it.
    """
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as log:
        end = log.seek(0, os.SEEK_END)
        while end:
            log.seek(max(0, end - CUT_BYTES))
            block = log.read(end - log.tell())
            lines = block.splitlines(keepends=True)
            if len(block) < end:
                lines = lines[1:] or lines  # the first may begin before; one alone is longer than any row
            for line in reversed(lines):
                row = _row(line)
                if row is not None and (row["timeline"] != timeline or _stays(row, resume_step)):
                    log.truncate(end)
                    return
                end -= len(line)
        log.truncate(0)


def _stays(row: Mapping[str, Any], resume_step: int) -> bool:
    return row["step"] <= resume_step and row.get("val_loss", 0.0) is not None


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)  # JSON has no such number


def _row(line: bytes) -> dict[str, Any] | None:
    """Returns a complete row, or None for a torn or unreadable line."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = parse_json(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and type(row.get("step")) is int and type(row.get("timeline")) is int
    return row if whole else None
