"""What a picture of memory shows, curves and marks: read from a recording, or from a pipeline's samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from stoker.config.units import format_bytes
from stoker.kit.events import EventTail
from stoker.memory.recording import number, read_table
from stoker.store.errors import DataError
from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.record import parse_json

MOST_POINTS = 4096  # of a curve; a picture shows no more, and a month has 43,200 samples
CURVES = {  # of a recording: the column and the curve's name, the most important first
    "rss_bytes": "RSS",
    "pss_bytes": "PSS",
    "swap_bytes": "swap",
    "gpu_bytes": "GPU",
    "arrow_bytes": "Arrow pool",
    "traced_bytes": "Python objects",
}
EVENTS = {"trainer_launched": "launch", "checkpoint_proven": "checkpoint"}
EVALUATION = "evaluation"


@dataclass
class Curve:
    """Bytes over seconds, in at most MOST_POINTS points, each the highest of as many values."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)
    _values: int = 0  # in the last point
    _most_values: int = 1  # in a point

    def add(self, at_s: float, size: float) -> None:
        if not self.points or self._values >= self._most_values:
            if len(self.points) >= MOST_POINTS:
                pairs = zip(self.points[::2], self.points[1::2], strict=True)
                self.points = [max(pair, key=lambda point: point[1]) for pair in pairs]
                self._most_values *= 2
            self.points.append((at_s, size))
            self._values = 0
        elif size > self.points[-1][1]:
            self.points[-1] = (at_s, size)
        self._values += 1

    @property
    def peak(self) -> tuple[float, float]:
        """The highest point."""
        return max(self.points, key=lambda point: point[1])


@dataclass(frozen=True)
class Mark:
    """A moment in the picture; `kind` is the word in the legend."""

    at_s: float
    kind: str
    text: str = ""


@dataclass
class Panel:
    """Curves over the same time; the first is the sum, or the most important."""

    title: str
    curves: list[Curve]
    notes: list[str] = field(default_factory=list)


@dataclass
class Picture:
    """Panels with the same marks; `began_s` is the Unix time of second 0, None where seconds say enough."""

    panels: list[Panel]
    marks: list[Mark]
    began_s: float | None = None


def growth_bytes_per_min(points: Sequence[tuple[float, float]]) -> float | None:
    """Returns the slope of a line through the later half of points (seconds, bytes); None for too few.

    The earlier half is left out: a program that loads grows without a leak.
    """
    middle = (points[0][0] + points[-1][0]) / 2 if points else 0.0
    late = [point for point in points if point[0] >= middle]
    if len(late) < 3:
        return None
    mean_x, mean_y = (sum(axis) / len(late) for axis in zip(*late, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in late)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in late) / spread if spread else None


def picture_of_recording(path: Path) -> Picture:
    """Reads a recording of `stoker memory record`; raises DataError, StorageError, OSError."""
    curves = {column: Curve(name) for column, name in CURVES.items()}
    marks: list[Mark] = []
    notes: list[str] = []
    peak = 0.0
    for line, row in read_table(path, ("elapsed_s", "kind", "rss_bytes")):
        where = f"{path}:{line}"
        at_s = number(where, row, "elapsed_s")
        if at_s is None:
            raise DataError(f"{where}: no elapsed_s; this is no row of a recording")
        peak = number(where, row, "peak_rss_bytes") or peak
        for column, curve in curves.items():
            if (size := number(where, row, column)) is not None:
                curve.add(at_s, size)
        match row["kind"]:
            case "mark":
                marks.append(Mark(at_s, "mark", row.get("note", "")))
            case "signal":
                marks.append(Mark(at_s, "signal", row.get("signal", "")))
            case "exit":
                notes += _end(row)
    shown = [curve for curve in curves.values() if any(size for _, size in curve.points)]
    if not shown:
        raise DataError(f"{path}: no sample in it yet")
    if peak > shown[0].peak[1]:
        notes.insert(0, f"peak between two samples: {format_bytes(peak)}")
    return Picture([Panel(path.name, shown, notes)], marks)


def _end(row: dict[str, str]) -> Iterator[str]:
    how = row.get("signal") or (f"exit code {row['exit_code']}" if row.get("exit_code") else "")
    yield f"ended: {how}" if how else row.get("note", "")
    if how and row.get("note"):
        yield f"most memory at the end: {row['note']}"


def picture_of_samples(layout: StateLayout, run: str) -> Picture:
    """Reads the daemons' samples, and what happened meanwhile; raises DataError, StorageError, OSError."""
    panels = [panel for daemon in DAEMONS if (panel := _samples_of(layout, daemon)) is not None]
    if not panels:
        raise DataError(f"{layout.state}: no samples yet; each daemon writes a row a minute")
    began = min(curve.points[0][0] for panel in panels for curve in panel.curves)
    for panel in panels:
        for curve in panel.curves:
            curve.points = [(at - began, size) for at, size in curve.points]
    marks = (*_events(layout), *_evaluations(layout.run(run).metrics))
    shown = [Mark(at - began, kind) for at, kind in marks if at >= began]
    return Picture(panels, sorted(shown, key=lambda mark: mark.at_s), began)


def _samples_of(layout: StateLayout, daemon: str) -> Panel | None:
    """Returns a daemon's panel, its curves over Unix time: all roles, each role, the GPUs."""
    path = layout.samples(daemon)
    total, curves = Curve("RSS"), dict[str, Curve]()
    for file in (path.with_name(f"{path.name}.1"), path):
        if not file.exists():
            continue
        for line, row in read_table(file, ("time",)):
            where = f"{file}:{line}"
            at = _unix(row["time"])
            if at is None:
                raise DataError(f"{where}: time holds {row['time']!r}, which is no time")
            sizes = {
                column.removesuffix("_rss_bytes"): number(where, row, column) or 0.0
                for column in row
                if column.endswith("_rss_bytes")
            }
            total.add(at, math.fsum(sizes.values()))
            if (used := number(where, row, "gpu_memory_used_bytes")) is not None:
                sizes["GPU"] = used
            for name, size in sizes.items():
                curves.setdefault(name, Curve(name)).add(at, size)
    if not total.points:
        return None
    used_curves = [curve for curve in curves.values() if any(size for _, size in curve.points)]
    return Panel(daemon.replace("_", " "), [total, *used_curves])


def _events(layout: StateLayout) -> Iterator[tuple[float, str]]:
    for event in EventTail(layout).new():
        kind, at = EVENTS.get(str(event.get("event"))), _unix(event.get("time"))
        if kind is not None and at is not None:
            yield at, kind


def _evaluations(metrics: Path) -> Iterator[tuple[float, str]]:
    if not metrics.exists():
        return
    with metrics.open("rb") as stream:
        for line in stream:
            if b'"val_loss"' not in line:
                continue
            try:
                body: Any = parse_json(line)
            except ValueError:  # torn by a kill
                continue
            if isinstance(body, dict) and (at := _unix(body.get("time"))) is not None:
                yield at, EVALUATION


def _unix(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
