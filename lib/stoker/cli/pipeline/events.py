"""`stoker events`: shows the events of every daemon's event log."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.output import LABEL_WIDTH, LABELS, STDOUT, event_line
from stoker.config.schema import Pipeline
from stoker.config.units import parse_duration
from stoker.kit.events import EventTail
from stoker.kit.terminal import Footer, sentence
from stoker.store.errors import UsageError

LOOK_EVERY_S = 0.25


@click.command(epilog="Example: stoker events /etc/stoker/fineweb.yaml --since 2h --follow")
@pipeline_file
@click.option("--follow", "-f", is_flag=True, help="Keep showing new events, until Ctrl-C.")
@click.option("--since", metavar="WHEN", help="Only later ones: 90m, 2d, or 2026-11-20T12:00:00Z.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def events(pipeline: Pipeline, follow: bool, since: str | None, as_json: bool) -> None:
    """Show what happened, oldest first: every daemon's events merged by time."""
    earliest = _moment(since, datetime.now(UTC)) if since else ""
    tail = EventTail(pipeline.layout)
    while True:
        for event in tail.new():
            if str(event.get("time", "")) >= earliest:
                click.echo(json.dumps(event, ensure_ascii=False) if as_json else _line(event), color=True)
        if not follow:
            return
        time.sleep(LOOK_EVERY_S)


def _moment(text: str, now: datetime) -> str:
    """Returns the time stamp of a duration before now, or of a date, in the events' form."""
    try:
        when = now - timedelta(seconds=parse_duration(text))
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            raise UsageError(
                f"--since {text!r} is neither a duration like 90m nor a time like 2026-11-20T12:00:00Z"
            ) from error
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def _line(event: dict[str, Any]) -> str:
    level = str(event.get("level", "info"))
    if sys.stdout.isatty():
        label, at = f"{LABELS[event['daemon']]:<{LABEL_WIDTH}}", str(event.get("time"))
        return Footer(STDOUT).line(sentence(event), level, label, at).decode().rstrip("\n")
    mark = "" if level == "info" else f"[{level}] "
    return f"{event.get('time')} {event['daemon']:<17} {mark}{event_line(event)}"
