"""Draws pictures of memory: as text for a terminal, and as PNG or SVG by matplotlib."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.config.units import format_bytes, format_duration
from stoker.memory.memory_picture import Curve, Mark, Panel, Picture, growth_bytes_per_min
from stoker.store.errors import storage_errors

BLOCKS = " ▁▂▃▄▅▆▇█"
LABEL = 11  # columns of the axis
ROWS_ALONE, ROWS_EACH = 10, 6
MOST_MARKS = 26  # with a text of their own below the picture
SIGNS = {"launch": "L", "checkpoint": "C", "evaluation": "E", "signal": "!"}
COLOURS = {"launch": "tab:green", "checkpoint": "tab:gray", "evaluation": "tab:orange", "signal": "tab:red"}
MARK_COLOUR = "tab:purple"
PANEL_INCHES, LEAST_INCHES, DPI = 2.6, 4.0, 120
MOST_TICKS, MARK_CHARS = 7, 30
MOST_LINES = 150  # of a kind of mark; more hide the curves


def as_text(picture: Picture, width: int) -> Iterator[str]:
    """Yields the lines of a picture with at most `width` columns but for notes."""
    rows = ROWS_ALONE if len(picture.panels) == 1 else ROWS_EACH
    curves = [curve for panel in picture.panels for curve in panel.curves]
    begin, end = (pick(curve.points[at][0] for curve in curves) for pick, at in ((min, 0), (max, -1)))
    columns = max(1, width - LABEL - 1)
    signs = list(_signs(picture.marks))
    for panel in picture.panels:
        yield panel.title
        yield from _drawn(panel.curves[0], begin, end, rows, columns)
        if signs:
            yield " " * (LABEL + 1) + _mark_row(signs, begin, end, columns)
        yield " " * (LABEL + 1) + _time_row(picture, begin, end, columns)
        yield from (f"  {line}" for line in (*_figures(panel), *panel.notes))
        yield ""
    yield from (line[:width] for line in _legend(signs))


def _drawn(curve: Curve, begin: float, end: float, rows: int, columns: int) -> Iterator[str]:
    """Yields the rows of a curve: each column shows the highest value of its time."""
    most = max(curve.peak[1], 1.0)
    highest: list[float | None] = [None] * columns
    for at, size in curve.points:
        place = _place(at, begin, end, columns)
        highest[place] = max(highest[place] or 0.0, size)
    shown, last = [], 0.0
    for value in highest:
        last = last if value is None else value  # between two samples the last one holds
        shown.append(round(last / most * rows * 8))
    for row in reversed(range(rows)):
        label = format_bytes(most * (row + 1) / rows) if row in (rows - 1, rows // 2 - 1) else ""
        yield (
            f"{label:>{LABEL}}|"
            + "".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in shown).rstrip()
        )


def _place(at: float, begin: float, end: float, columns: int) -> int:
    return min(columns - 1, int((at - begin) / max(end - begin, 1e-9) * columns))


def _signs(marks: Sequence[Mark]) -> Iterator[tuple[str, Mark]]:
    """Yields each mark with its letter: a kind's own, or a, b, c of the marks with texts."""
    texts = 0
    for mark in marks:
        if mark.kind in SIGNS:
            yield SIGNS[mark.kind], mark
            continue
        yield (chr(ord("a") + texts) if texts < MOST_MARKS else "."), mark
        texts += 1


def _mark_row(signs: Iterable[tuple[str, Mark]], begin: float, end: float, columns: int) -> str:
    row = [" "] * columns
    for sign, mark in signs:
        row[_place(mark.at_s, begin, end, columns)] = sign
    return "".join(row).rstrip()


def _time_row(picture: Picture, begin: float, end: float, columns: int) -> str:
    if picture.began_s is None:
        first, last = "0 s", format_duration(end)
    else:
        first, last = (
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(picture.began_s + at)) for at in (begin, end)
        )
        last += " UTC"
    return first + last.rjust(columns - len(first)) if len(first) + len(last) < columns else last


def _figures(panel: Panel) -> Iterator[str]:
    for curve in panel.curves:
        at, size = curve.peak
        last_at, last = curve.points[-1]
        text = f"{curve.name}: peak {format_bytes(size)} at {format_duration(at)}, last {format_bytes(last)}"
        if curve is panel.curves[0] and (growth := growth_bytes_per_min(curve.points)) is not None:
            sign = "-" if growth < 0 else "+"
            over = format_duration((last_at - curve.points[0][0]) / 2)
            text += f", {sign}{format_bytes(abs(growth))} a minute over the last {over}"
        yield text


def _legend(signs: Sequence[tuple[str, Mark]]) -> Iterator[str]:
    kinds = [f"{sign} {kind}" for kind, sign in SIGNS.items() if any(kind == mark.kind for _, mark in signs)]
    if kinds:
        yield "  ".join(kinds)
    texts = [(sign, mark) for sign, mark in signs if mark.text]
    yield from (f"{sign} {format_duration(mark.at_s)}: {mark.text}" for sign, mark in texts[:MOST_MARKS])
    if len(texts) > MOST_MARKS:
        yield f"and {len(texts) - MOST_MARKS:,} more marks"


def write_plot(picture: Picture, path: Path) -> None:
    """Writes the picture as a file of the kind that its suffix names; raises StorageError."""
    import matplotlib as mpl
    from matplotlib import dates
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    mpl.rcParams["svg.fonttype"] = "none"  # text that can be searched, and a smaller file
    height = max(LEAST_INCHES, PANEL_INCHES * len(picture.panels))
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots(len(picture.panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, picture.panels, strict=True):
        for curve in panel.curves:
            times, sizes = zip(*curve.points, strict=True)
            axis.plot(_times(picture, times), sizes, label=curve.name, drawstyle="steps-post")
        _plot_marks(axis, picture)
        axis.set_title(panel.title, loc="left")
        axis.set_ylim(bottom=0)
        most = max(curve.peak[1] for curve in panel.curves)
        axis.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(most, 1) / MOST_TICKS))))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(size)))
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    if picture.began_s is not None:
        locator = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
        formatter = dates.ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        axes[-1].xaxis.set(major_locator=locator, major_formatter=formatter)
    axes[-1].set_xlabel("seconds" if picture.began_s is None else "UTC")
    with storage_errors("write", path):
        figure.savefig(path, dpi=DPI)


def _times(picture: Picture, seconds: Iterable[float]) -> list[Any]:
    if picture.began_s is None:
        return list(seconds)
    return [datetime.fromtimestamp(picture.began_s + at, UTC) for at in seconds]


def _plot_marks(axis: Any, picture: Picture) -> None:
    named, counts = set(), Counter(mark.kind for mark in picture.marks)
    for number, mark in enumerate(picture.marks):
        colour = COLOURS.get(mark.kind, MARK_COLOUR)
        if counts[mark.kind] > MOST_LINES:
            if mark.kind not in named:
                axis.plot([], [], linestyle="none", label=f"{counts[mark.kind]:,} {mark.kind}s: not drawn")
                named.add(mark.kind)
            continue
        label = None if mark.kind in named else mark.kind
        named.add(mark.kind)
        (at,) = _times(picture, (mark.at_s,))
        axis.axvline(at, color=colour, linewidth=0.8, alpha=0.7, label=label)
        if mark.text and number < MOST_MARKS:
            text = mark.text[:MARK_CHARS].replace("$", r"\$")  # else matplotlib takes it for mathematics
            note = axis.annotate(
                text, xy=(at, 1), xycoords=("data", "axes fraction"), xytext=(2, -2), annotation_clip=True,
                textcoords="offset points", rotation=90, va="top", fontsize=7, color=colour,
            )  # fmt: skip
            note.set_in_layout(False)
