"""Makes the page: one HTML text that loads nothing, with what comes from files escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stoker.cli.options import one_line
from stoker.cli.report.parts import Section
from stoker.config.schema import Pipeline
from stoker.observe.drawing import MOST_COLOURS, Panel, inline_svg
from stoker.store.record import utc_now

MOST_CHARS = 400  # of a text: an error of another program may be as long as it likes


def as_html(pipeline: Pipeline, sections: Sequence[Section]) -> bytes:
    """Returns the page; the first section is the verdict's."""
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
    about: dict[str, object] = {
        "pipeline": pipeline,
        "first": sections[0],
        "sections": sections[1:],
        "time": utc_now(),
    }
    about["verdict"] = next(iter(sections[0].verdicts), None)
    return page.render(about, svg=_svg, colours=MOST_COLOURS).encode()


def _shown(value: object) -> object:
    """Returns what is put on the page for a value, before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = one_line(value)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} ..."


def _svg(panel: Panel) -> Markup:
    return Markup(inline_svg(panel))  # noqa: S704  matplotlib escapes texts
