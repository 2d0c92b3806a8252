"""Makes the page: one HTML text that loads nothing, with what comes from files escaped."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stoker.cli.options import one_line
from stoker.cli.report.parts import Report
from stoker.observe.drawing import MOST_COLOURS, Panel, inline_svg

MOST_CHARS = 400  # of a text: an error of another program may be as long as it likes


def as_html(report: Report) -> bytes:
    """Returns the page."""
    folder = Path(__file__).parent
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = made.get_template("page.html")
    return page.render(report=report, svg=_svg, colours=MOST_COLOURS).encode()


def _shown(value: object) -> object:
    """Returns what is put on the page for a value, before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = one_line(value)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} ..."


def _svg(panel: Panel) -> Markup:
    return Markup(inline_svg(panel))  # noqa: S704  matplotlib escapes texts
