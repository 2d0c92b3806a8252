"""What is shown of memory, curves and marks: read from a recording, or from a pipeline's samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from stoker.config.units import format_bytes
from stoker.kit.events import EventTail
from stoker.observe.drawing import Mark, Panel, Points
from stoker.store.errors import DataError, storage_errors
from stoker.store.layout import DAEMONS, StateLayout
from stoker.supervise.run.step_rows import rows_of

NEEDED = ("elapsed_s", "kind", "rss_bytes", "peak_rss_bytes", "exit_code", "signal", "note")
WHOLE = ("RSS", "PSS", "USS")
CURVES = {  # by column, the most important first; the last two are in older recordings alone
    **{f"{name.lower()}_bytes": name for name in (*WHOLE, "swap", "GPU")},
    "gpu_memory_used_bytes": "GPU",
    "arrow_bytes": "Arrow pool",
    "traced_bytes": "Python objects",
}
ROLE = "_rss_bytes"  # of a daemon's samples: a column for each role of its processes
MOST_PROGRAMS = 5  # with a curve of their own
EVENTS = {"trainer_launched": "launch", "checkpoint_proven": "checkpoint"}
LEAST_BYTES = 4 << 20  # smaller growth is that of allocators


def growth_bytes_per_min(points: Points) -> float | None:
    """Returns the slope of a line through the later half of points; None for too few.

    The earlier half is left out: a program that loads grows without a leak.
    """
    times, sizes = points
    late = times >= (times[0] + times[-1]) / 2
    return float(60 * np.polyfit(times[late], sizes[late], 1)[0]) if late.sum() > 2 else None


def what_grows(panel: Panel) -> dict[str, Any]:
    """Names the curve that grows most over the later half; `culprit` is None where none does."""
    slopes = {name: growth_bytes_per_min(points) or 0.0 for name, points in panel.curves.items()}
    times, _ = next(iter(panel.curves.values()))
    least = LEAST_BYTES / max((times[-1] - times[0]) / 120, 1e-9)
    growing = {name: slope for name, slope in slopes.items() if slope >= least}
    # A part says more than the sum of all parts does.
    culprit = max(growing, key=lambda name: (name not in WHOLE, growing[name]), default=None)
    told = ", ".join(f"{name} +{format_bytes(slope)}" for name, slope in growing.items())
    sentence = f"{culprit} is what grows most in the later half, a minute: {told}."
    none = f"Nothing grows by {format_bytes(LEAST_BYTES)} in the later half."
    return {"culprit": culprit, "growth_bytes_per_min": slopes, "sentence": sentence if culprit else none}


def panel_of_recording(path: Path) -> Panel:
    """Reads a recording of `stoker memory record`; raises DataError, StorageError, OSError."""
    table = _read(path, NEEDED)
    if table["elapsed_s"].null_count:
        raise DataError(f"{path}: a row has no elapsed_s; this is no recording")
    curves = _curves(table, table["elapsed_s"].to_numpy())
    if not curves:
        raise DataError(f"{path}: no sample in it yet")
    marks, notes = [], []
    for row in table.filter(pc.not_equal(table["kind"], "sample")).to_pylist():
        if row["kind"] == "exit":
            how = row["signal"] or (f"exit code {row['exit_code']}" if row["exit_code"] else "")
            notes.append(f"ended: {', '.join(filter(None, (how, row['note'])))}")
            notes.append(f"peak, between two samples too: {format_bytes(row['peak_rss_bytes'] or 0)}")
        else:
            marks.append(Mark(row["elapsed_s"], row["kind"], row["note"] or row["signal"]))
    return Panel(path.name, curves, marks, notes)


def panels_of_samples(layout: StateLayout, run: str) -> list[Panel]:
    """Reads the daemons' samples, and what happened meanwhile; raises DataError, StorageError, OSError."""
    samples = {daemon: _samples(layout.samples(daemon)) for daemon in DAEMONS}
    if not any(samples.values()):
        raise DataError(f"{layout.state}: no samples yet; each daemon writes a row a minute")
    began = min(times[0] for curves in samples.values() for times, _ in curves.values())
    since = f"from {datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M} UTC"
    marks = [Mark(at - began, kind) for at, kind in sorted(_happened(layout, run)) if at >= began]
    panels = []
    for daemon, found in samples.items():
        curves = {name: (at - began, sizes) for name, (at, sizes) in found.items()}
        panels.append(Panel(f"{daemon.replace('_', ' ')} {since}", curves, marks))
    return [panel for panel in panels if panel.curves]


def _samples(path: Path) -> dict[str, Points]:
    """Returns a daemon's curves, over Unix time."""
    tables = [_read(file, ["time"]) for file in (path.with_name(f"{path.name}.1"), path) if file.exists()]
    if not tables:
        return {}
    table = pa.concat_tables(tables, promote_options="default")
    return _curves(table, table["time"].cast(pa.int64()).to_numpy().astype(float))


def _happened(layout: StateLayout, run: str) -> Iterator[tuple[float, str]]:
    events = [(event.get("time"), EVENTS.get(str(event.get("event")))) for event in EventTail(layout).new()]
    rows = rows_of(layout.run(run).metrics, b'"val_loss"')
    for time, kind in (*events, *((row.get("time"), "evaluation") for row in rows)):
        if kind is not None and isinstance(time, str):
            yield datetime.fromisoformat(time).timestamp(), kind


def _curves(table: Any, times: Any) -> dict[str, Points]:
    """Returns each kind of memory of which some is known, then each role or program."""
    columns = {name: table[name].to_numpy() for name in table.column_names if name.endswith("_bytes")}
    roles = {
        name.removesuffix(ROLE): sizes
        for name, sizes in columns.items()
        if name.endswith(ROLE) and name != "peak_rss_bytes"
    }
    if roles:
        columns["rss_bytes"] = np.nansum(list(roles.values()), axis=0)
    found = {CURVES[name]: columns[name] for name in CURVES if name in columns}
    found |= roles | _programs(table)
    known = ((name, sizes, ~np.isnan(sizes)) for name, sizes in found.items() if np.any(sizes > 0))
    return {name: (times[at], sizes[at]) for name, sizes, at in known}


def _programs(table: Any) -> dict[str, Any]:
    """Returns the RSS of the programs that held most at a time, where there were several."""
    if "by_name" not in table.column_names:
        return {}
    # A program that does not run holds nothing; the row of the end has no figures.
    held = defaultdict[str, Any](np.where(table["rss_bytes"].is_valid(), 0.0, np.nan).copy)
    for at, cell in enumerate(table["by_name"].to_pylist()):
        for program in filter(None, (cell or "").split("; ")):
            name, _, size = program.rpartition(" ")
            held[name][at] = float(size) if size.isdigit() else np.nan
    largest = sorted(held, key=lambda name: -np.nanmax(held[name]))
    return {name: held[name] for name in largest[:MOST_PROGRAMS]} if len(held) > 1 else {}


def _read(path: Path, needed: Collection[str]) -> Any:
    """Returns a CSV as a table; lines that a crash tore are left out."""
    with storage_errors("read", path):
        data = path.read_bytes()
    data = data[: data.rfind(b"\n") + 1]
    header = data.partition(b"\n")[0].decode(errors="replace").split(",")
    if missing := [name for name in needed if name not in header]:
        raise DataError(f"{path}: no column {missing[0]!r} in its first line; name a recording")
    kinds = {name: pa.float64() if name.endswith(("_bytes", "_s")) else pa.string() for name in header}
    options = pyarrow.csv.ConvertOptions(column_types={**kinds, "time": pa.timestamp("s", "UTC")})
    whole = pyarrow.csv.ParseOptions(invalid_row_handler=lambda row: "skip")
    try:
        return pyarrow.csv.read_csv(pa.BufferReader(data), parse_options=whole, convert_options=options)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {error}") from error
