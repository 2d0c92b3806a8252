"""The console page: a console template of Prometheus that holds all it needs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from string import Template
from typing import Any

from dashlib.panels import ANNOTATIONS, Board, Panel

_PARTS = Path(__file__).parent / "console"


def text(boards: tuple[Board, ...]) -> str:
    """The HTML of the page with its style, its script and the boards inside.

    Prometheus reads it as a Go template, for which two opening braces begin an action.
    """
    page = Template((_PARTS / "page.html").read_text()).substitute(
        style=(_PARTS / "page.css").read_text().strip(),
        boards=_json([_board(board) for board in boards]),
        annotations=_json([dataclasses.asdict(each) for each in ANNOTATIONS]),
        script=(_PARTS / "page.js").read_text().strip(),
    )
    if "{{" in page:
        raise ValueError(f"two opening braces in {_PARTS}: Prometheus would take them for an action")
    return page


def _board(board: Board) -> dict[str, Any]:
    rows = [{"title": row.title, "panels": [_panel(panel) for panel in row.panels]} for row in board.rows]
    return {"name": board.name, "title": board.title, "rows": rows}


def _panel(panel: Panel) -> dict[str, Any]:
    fields = dataclasses.asdict(panel)
    return fields | {"queries": list(panel.expressions.items()), "text": fields.pop("description")}


def _json(value: Any) -> str:
    """JSON that may stand in a script of a Go template."""
    encoded = json.dumps(value, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace("{{", "{\\u007b")
