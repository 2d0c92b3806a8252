"""Draws curves for pictures and pages. matplotlib, which takes half a second, is imported to draw alone."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stoker.config.units import format_bytes, format_count, format_duration

MOST_POINTS = 2000  # of a curve; a picture shows no more, and a month has 43,200 samples
MOST_COLOURS = 8  # of a page
MOST_TICKS = 7
# A pause lasts so many usual distances, such a share of the time shown, and so long.
GAP, GAP_SHARE, GAP_S = 20.0, 0.01, 60.0
SVG_INCHES = (4.8, 2.2)  # a page scales it to a column, on a phone to about its size
DAY_S = 86_400.0  # matplotlib counts days
# Colours that stand for those of the page, which has one set of them for light and one for dark.
_INK, _CURVES = "#010101", [f"#0102{number:02x}" for number in range(MOST_COLOURS)]
_OF_PAGE = {_INK: "currentColor", **{colour: f"var(--c{n})" for n, colour in enumerate(_CURVES)}}

Points = tuple[Any, Any]  # two arrays of numpy: seconds or steps, in order, and values


class Mark(NamedTuple):
    """A moment; `kind` is the word in the legend."""

    at_s: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """Curves over the same axis; the first is the sum, or the most important.

    `unit` and `over` say what the values and the axis below are: rows of UNITS, and `duration`, `time` (Unix
    seconds) or `step`. Curves of `dots` are drawn as dots.
    """

    title: str
    curves: Mapping[str, Points]
    marks: list[Mark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unit: str = "bytes"
    over: str = "duration"
    dots: frozenset[str] = frozenset()


UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "count": format_count,
    "share": lambda share: f"{100 * share:.0f} %",
    "loss": lambda loss: f"{loss:.6g}",
}


def extremes(points: Points, most: int = MOST_POINTS) -> Points:
    """Returns at most so many points: the first, the last, and of each stretch the lowest and the highest."""
    at, values = points
    if len(at) <= most:
        return points
    edges = np.linspace(at[0], at[-1], most // 2 - 1, endpoint=False)
    starts = [*np.unique(np.searchsorted(at, edges)).tolist(), len(at)]
    chosen = {0, len(at) - 1}
    for first, last in pairwise(starts):
        part = values[first:last]
        chosen |= {first + int(part.argmin()), first + int(part.argmax())}
    kept = sorted(chosen)
    return at[kept], values[kept]


def draw(axis: Any, panel: Panel) -> None:
    """Draws curves, marks and scales on an axis of matplotlib, of each curve at most MOST_POINTS."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    scale = DAY_S if panel.over == "time" else 1
    for name, points in panel.curves.items():
        at, values = extremes(points)
        if name in panel.dots:
            axis.plot(at, values, ".", label=name, markersize=4)
        elif len(at) == 1:  # is no line yet
            axis.plot(at / scale, values, ".", label=name)
        elif panel.over == "duration":
            axis.plot(at, values, label=name, drawstyle="steps-post")
        else:
            axis.plot(*_with_gaps(at, values, panel.over), label=name, linewidth=1.1)
    for number, kind in enumerate(dict.fromkeys(mark.kind for mark in panel.marks)):
        at = [mark.at_s / scale for mark in panel.marks if mark.kind == kind]
        # The whole height, whatever the scale: x is data, y a share of the axis.
        axis.vlines(at, 0, 1, transform=axis.get_xaxis_transform(), linewidth=0.8, alpha=0.6,
                    color=f"C{9 - number}", linestyle="dotted", label=kind)  # fmt: skip
    if panel.unit != "loss":
        axis.set_ylim(bottom=0)
    if panel.unit == "bytes":
        most = max(values.max() for _, values in panel.curves.values())
        axis.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(most, 1) / MOST_TICKS))))
    told = UNITS[panel.unit]
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: told(value)))
    axis.grid(alpha=0.3)
    if panel.over == "time":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        make_locator: Any = AutoDateLocator  # of which matplotlib says no types
        make_formatter: Any = ConciseDateFormatter
        axis.xaxis.set_major_locator(locator := make_locator(minticks=3, maxticks=MOST_TICKS + 1))
        axis.xaxis.set_major_formatter(make_formatter(locator))
    elif panel.over == "step":
        axis.xaxis.set_major_locator(MaxNLocator(MOST_TICKS - 1, integer=True))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: format_count(step)))
    else:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda at, _: format_duration(at)))


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
    style: Any = {**dict.fromkeys(inked, _INK), "axes.prop_cycle": cycler(color=_CURVES), "font.size": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none"}
    style |= {"svg.fonttype": "none", "svg.hashsalt": ascii(panel.title)}  # text, and the same ids each time
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context(style):
        draw(figure.subplots(), panel)
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _for_page(out.getvalue())


def _for_page(svg: str) -> str:
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    return re.sub(r"#010[12]0[0-9]\b", lambda colour: _OF_PAGE[colour[0]], svg)


def _with_gaps(at: Any, values: Any, over: str) -> Points:
    """Returns the points with a gap where time passed without any; time is in days then."""
    if over != "time":
        return at, values
    steps = np.diff(at)
    usual = float(np.median(steps)) if len(steps) else 0.0
    least = max(GAP * usual, GAP_SHARE * float(at[-1] - at[0]), GAP_S)
    behind = np.flatnonzero(steps > least) + 1
    return np.insert(at, behind, at[behind]) / DAY_S, np.insert(values.astype(float), behind, np.nan)
