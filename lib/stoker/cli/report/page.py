"""Makes the page: one HTML text that loads nothing, with what comes from files escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stoker.cli.options import one_line
from stoker.config.schema import Pipeline
from stoker.observe.drawing import MOST_COLOURS, Panel, inline_svg
from stoker.observe.verdict import Verdict
from stoker.store.record import utc_now

MOST_CHARS = 400  # of a text: an error of another program may be as long as it likes


class Missing(NamedTuple):
    """Something that a section has not, and why."""

    missing: str


class Table(NamedTuple):
    """Rows below a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Part = str | Missing | Table | Panel | Verdict
Sections = Mapping[str, Sequence[Part]]  # by title


def as_html(pipeline: Pipeline, sections: Sections) -> bytes:
    """Returns the page."""
    folder = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, finalize=_shown)
    verdicts = (part for parts in sections.values() for part in parts if isinstance(part, Verdict))
    about = {"pipeline": pipeline, "sections": sections, "verdict": next(verdicts, None), "time": utc_now()}
    page = made.get_template("page.html")
    return page.render(about, svg=inline_svg, colours=MOST_COLOURS).encode() + b"\n"


def _shown(value: object) -> object:
    """Returns what is put on the page for a value, before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = one_line(value)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} ..."
