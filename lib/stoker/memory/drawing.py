"""Draws panels of memory: a line a curve for a terminal, and as PNG or SVG by matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stoker.cli.options import plural
from stoker.config.units import format_bytes, format_duration
from stoker.memory.picture import Panel, Points, growth_bytes_per_min
from stoker.store.errors import UnavailableError, storage_errors

BLOCKS, BLOCK_COLUMNS = "▁▂▃▄▅▆▇█", 24
MOST_TEXTS, TEXT_CHARS = 26, 30  # of marks
PLOT_POINTS = 4096  # of a curve; a picture shows no more, and a month has 43,200 samples
PANEL_INCHES, LEAST_INCHES, DPI, MOST_TICKS = 2.6, 4.0, 120, 7


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
    """Writes a picture of the kind that the suffix names; raises StorageError, UnavailableError."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MultipleLocator
    except ImportError as error:
        raise UnavailableError(
            "a picture needs matplotlib: pip install 'stoker[memory]' in Stoker's environment; "
            "without --plot the figures are shown as text"
        ) from error
    height = max(LEAST_INCHES, PANEL_INCHES * len(panels))
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        for name, points in panel.curves.items():
            axis.plot(*highest(points, PLOT_POINTS), label=name, drawstyle="steps-post")
        for number, kind in enumerate(dict.fromkeys(mark.kind for mark in panel.marks)):
            at = [mark.at_s for mark in panel.marks if mark.kind == kind]
            # The whole height, whatever the scale: x is data, y a share of the axis.
            axis.vlines(at, 0, 1, transform=axis.get_xaxis_transform(), linewidth=0.8, alpha=0.6,
                        color=f"C{9 - number}", linestyle="dotted", label=kind)  # fmt: skip
        for mark in [mark for mark in panel.marks if mark.text][:MOST_TEXTS]:
            text = mark.text[:TEXT_CHARS].replace("$", r"\$")  # else matplotlib takes it for mathematics
            axis.text(mark.at_s, 1, text, rotation=90, va="top", fontsize=7, clip_on=True,
                      transform=axis.get_xaxis_transform()).set_in_layout(False)  # fmt: skip
        most = max(sizes.max() for _, sizes in panel.curves.values())
        axis.set_title(panel.title, loc="left")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(most, 1) / MOST_TICKS))))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(size)))
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda at, _: format_duration(at)))
    # Text that can be searched, and a smaller file.
    with storage_errors("write", path), rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=DPI)
