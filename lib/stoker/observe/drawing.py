"""Draws curves for pictures and pages. matplotlib, which takes half a second, is imported to draw alone."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stoker.config.units import format_bytes, format_count, format_duration

MOST_POINTS = 2000  # of a curve; a picture shows no more, and a month has 43,200 samples
MOST_COLOURS = 8  # of a page
MOST_TICKS = 7
GAP, GAP_SHARE = 20.0, 0.01  # a pause lasts so many usual distances, and such a share of the time shown
SVG_INCHES = (4.8, 2.2)  # a page scales it to a column, on a phone to about its size
# Colours that stand for those of the page, which has one set of them for light and one for dark.
_OF_PAGE = {f"#0102{number:02x}": f"var(--c{number})" for number in range(MOST_COLOURS)}
_INK = "#010101"

Points = tuple[Any, Any]  # two arrays of numpy: seconds or steps, in order, and values


class Mark(NamedTuple):
    """A moment; `kind` is the word in the legend."""

    at_s: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """Curves over the same axis; the first is the sum, or the most important.

    `unit` writes a value; `over` says what the axis below is: `duration`, `time` (Unix seconds) or `step`.
    Curves of `dots` are drawn as dots.
    """

    title: str
    curves: Mapping[str, Points]
    marks: list[Mark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unit: Callable[[float], str] = format_bytes
    over: str = "duration"
    dots: frozenset[str] = frozenset()


def extremes(points: Points, most: int = MOST_POINTS) -> Points:
    """Returns at most so many points: the first, the last, and of each stretch the lowest and the highest."""
    at, values = points
    if len(at) <= most:
        return points
    edges = np.linspace(at[0], at[-1], most // 2 - 1, endpoint=False)
    starts, chosen = np.unique(np.searchsorted(at, edges)), {0, len(at) - 1}
    for start, part in zip(starts, np.split(values, starts[1:]), strict=True):
        chosen |= {start + part.argmin(), start + part.argmax()}
    kept = sorted(chosen)
    return at[kept], values[kept]


def draw(axis: Any, panel: Panel) -> None:
    """Draws curves, marks and scales on an axis of matplotlib, of each curve at most MOST_POINTS."""
    from matplotlib import dates, ticker

    for name, points in panel.curves.items():
        at, values = extremes(points)
        if panel.over == "time":
            at, values = _dated(at, values)
        if name in panel.dots or len(at) == 1:  # one point is no line yet
            axis.plot(at, values, ".", label=name, markersize=4, zorder=3)
        else:
            steps = "steps-post" if panel.over == "duration" else "default"
            axis.plot(at, values, label=name, drawstyle=steps, linewidth=1.2)
    for number, kind in enumerate(dict.fromkeys(mark.kind for mark in panel.marks)):
        at = [mark.at_s for mark in panel.marks if mark.kind == kind]
        # The whole height, whatever the scale: x is data, y a share of the axis.
        axis.vlines(at, 0, 1, transform=axis.get_xaxis_transform(), linewidth=0.8, alpha=0.6,
                    color=f"C{9 - number}", linestyle="dotted", label=kind)  # fmt: skip
    axis.grid(alpha=0.3)
    axis.yaxis.set_major_formatter(lambda value, _: panel.unit(value))
    if panel.over != "step":
        axis.set_ylim(bottom=0)
    if panel.unit is format_bytes:
        most = max(1, *(values.max() for _, values in panel.curves.values()))
        axis.yaxis.set_major_locator(ticker.MultipleLocator(2 ** math.ceil(math.log2(most / MOST_TICKS))))
    if panel.over == "time":
        locator = dates.AutoDateLocator(minticks=3, maxticks=MOST_TICKS + 1)  # type: ignore[no-untyped-call]
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    else:
        axis.xaxis.set_major_locator(ticker.MaxNLocator(MOST_TICKS - 1, integer=panel.over == "step"))
        below = format_count if panel.over == "step" else format_duration
        axis.xaxis.set_major_formatter(lambda at, _: below(at))


def _dated(at: Any, values: Any) -> Points:
    """Returns the points over dates, with a gap where time passed without any."""
    apart = np.diff(at, prepend=at[0])
    behind = np.flatnonzero(apart > max(GAP * np.median(apart), GAP_SHARE * (at[-1] - at[0])))
    at, values = np.insert(at, behind, at[behind]), np.insert(values.astype(float), behind, np.nan)
    return (1000 * at).astype("datetime64[ms]"), values


def new_figure(inches: tuple[float, float]) -> Any:
    """Returns an empty figure of matplotlib that lays itself out."""
    # Without a home to write to, it says so twice.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def inline_svg(panel: Panel) -> str:
    """Returns a panel as an <svg> for an HTML page, without title, legend, addresses and ids of groups.

    Its lines are `currentColor`, and its curves in turn the page's `--c0` to `--c7`.
    """
    figure = new_figure(SVG_INCHES)
    from cycler import cycler
    from matplotlib import rc_context

    inked = ("text.color", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    style: Any = {**dict.fromkeys(inked, _INK), "axes.prop_cycle": cycler(color=list(_OF_PAGE))}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    style |= {"svg.fonttype": "none", "svg.hashsalt": ascii(panel.title)}  # text, and ids of its own
    out = io.StringIO()
    with rc_context(style):
        draw(figure.subplots(), panel)
        figure.savefig(out, format="svg", transparent=True)
    _, _, drawn = out.getvalue().partition("</metadata>")
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn).replace(_INK, "currentColor")
    drawn = re.sub(r"#0102\d\d", lambda colour: _OF_PAGE[colour[0]], drawn)
    width, height = (72 * inches for inches in SVG_INCHES)
    return f'<svg viewBox="0 0 {width:g} {height:g}">{drawn}'
