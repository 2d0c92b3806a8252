"""Shows panels of memory: a line a curve for a terminal, and a picture, PNG or SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stoker.cli.options import plural
from stoker.config.units import format_bytes, format_duration
from stoker.memory.picture import growth_bytes_per_min
from stoker.observe.drawing import Panel, Points, draw, new_figure
from stoker.store.errors import storage_errors

BLOCKS, BLOCK_COLUMNS = "▁▂▃▄▅▆▇█", 24
MOST_TEXTS, TEXT_CHARS = 26, 30  # of marks
PANEL_INCHES, LEAST_INCHES, DPI = 2.6, 4.0, 120


def highest(points: Points, columns: int) -> Points:
    """Returns at most so many points, each the highest of as long a time."""
    times, sizes = points
    starts = np.unique(np.searchsorted(times, np.linspace(times[0], times[-1], columns, endpoint=False)))
    return times[starts], np.maximum.reduceat(sizes, starts)


def as_text(panel: Panel) -> Iterator[str]:
    """Yields the lines about a panel."""
    yield panel.title
    width = max(map(len, panel.curves))
    for name, (times, sizes) in panel.curves.items():
        most, at = sizes.max(), times[sizes.argmax()]
        _, shown = highest((times, sizes), BLOCK_COLUMNS)
        blocks = "".join(BLOCKS[int(size / max(most, 1) * (len(BLOCKS) - 1))] for size in shown)
        told = f"peak {format_bytes(most)} at {format_duration(at)}, last {format_bytes(sizes[-1])}"
        if (growth := growth_bytes_per_min((times, sizes))) is not None:
            over = format_duration((times[-1] - times[0]) / 2)
            told += f", {growth / 2**20:+,.1f} MiB a minute over the last {over}"
        yield f"  {name:<{width}} {blocks:<{BLOCK_COLUMNS}} {told}"
    texts = [mark for mark in panel.marks if mark.text][:MOST_TEXTS]
    yield from (f"  {mark.kind} {format_duration(mark.at_s)}: {mark.text}" for mark in texts)
    counts = Counter(mark.kind for mark in panel.marks)
    if len(texts) < len(panel.marks):
        yield f"  {', '.join(plural(count, kind) for kind, count in counts.items())}"
    yield from (f"  {note}" for note in panel.notes)


def write_plot(panels: Sequence[Panel], path: Path) -> None:
    """Writes a picture of the kind that the suffix names; raises StorageError."""
    figure = new_figure((10, max(LEAST_INCHES, PANEL_INCHES * len(panels))))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        draw(axis, panel)
        for mark in [mark for mark in panel.marks if mark.text][:MOST_TEXTS]:
            text = mark.text[:TEXT_CHARS].replace("$", r"\$")  # else matplotlib takes it for mathematics
            axis.text(mark.at_s, 1, text, rotation=90, va="top", fontsize=7, clip_on=True,
                      transform=axis.get_xaxis_transform()).set_in_layout(False)  # fmt: skip
        axis.set_title(panel.title, loc="left")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    # Text that can be searched, and a smaller file.
    from matplotlib import rc_context

    with storage_errors("write", path), rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=DPI)
