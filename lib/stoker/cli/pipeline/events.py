"""`stoker events`: what happened, from every daemon's event log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import pipeline_file
from stoker.cli.pipeline.output import LABELS, STDOUT, event_line
from stoker.config.load import load_pipeline
from stoker.config.units import parse_duration
from stoker.kit.events import read_events
from stoker.kit.sentences import sentence
from stoker.kit.status_line import COLOURS, PLAIN, coloured, columns_of, fold, paint
from stoker.store.errors import UsageError
from stoker.store.layout import DAEMONS, StateLayout

LOOK_EVERY_S = 0.25


@click.command(epilog="Example: stoker events /etc/stoker/fineweb.yaml --since 2h --follow")
@pipeline_file
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now, until Ctrl-C.")
@click.option("--since", metavar="WHEN", help="Only later ones: 90m, 2d, or 2026-11-20T12:00:00Z.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def events(file: Path, follow: bool, since: str | None, as_json: bool) -> None:
    """Show what happened, oldest first: every daemon's events merged by time."""
    pipeline = load_pipeline(file)
    earliest = _moment(since, datetime.now(UTC)) if since else ""
    for event in _entries(pipeline.layout, follow):
        if str(event.get("time", "")) >= earliest:
            click.echo(json.dumps(event, ensure_ascii=False) if as_json else _line(event), color=True)


def _entries(layout: StateLayout, follow: bool) -> Iterator[dict[str, Any]]:
    """Every event there is; with `follow` then each new one as it comes, for ever."""
    seen: set[tuple[str, Any]] = set()
    looked_at: object = None
    while True:
        logs = _state_of_logs(layout)
        if logs != looked_at:
            looked_at = logs
            found = {(event["daemon"], event.get("prev")): event for event in read_events(layout)}
            yield from (event for key, event in found.items() if key not in seen)
            seen = set(found)
        if not follow:
            return
        time.sleep(LOOK_EVERY_S)


def _state_of_logs(layout: StateLayout) -> list[tuple[int, int] | None]:
    """What changes when an event is written or a log rotates: each file's inode and size."""
    states: list[tuple[int, int] | None] = []
    for daemon in DAEMONS:
        try:
            found = layout.events(daemon).stat()
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((found.st_ino, found.st_size))
    return states


def _moment(text: str, now: datetime) -> str:
    """The time stamp that a duration before now, or a date, means; in the form events carry."""
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
        head, columns = f"{event.get('time')} {LABELS[event['daemon']]:<9}", columns_of(STDOUT)
        text = head + fold(sentence(event), columns, len(head))
        return paint(text, COLOURS.get(level, PLAIN)) if coloured(STDOUT) else text
    mark = "" if level == "info" else f"[{level}] "
    return f"{event.get('time')} {event['daemon']:<17} {mark}{event_line(event)}"
