"""Shows events and progress: `stoker events`, and the output of `stoker run`.

A terminal gets sentences, and below them a live line per daemon; a file or a pipe gets key=value lines.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from stoker.cli.options import pipeline_file
from stoker.config.schema import Pipeline
from stoker.config.units import parse_duration
from stoker.kit.events import EventTail, format_fields
from stoker.kit.terminal import DIM, GREEN, HIDDEN, RED, YELLOW, Footer, meaning, sentence
from stoker.observe.progress import download_parts, progress_line, shard_parts
from stoker.store.errors import UsageError
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR, StateLayout

LABELS = {DOWNLOAD_WATCHDOG: "download", STAGE_SHARD: "shard", TRAIN_SUPERVISOR: "train"}
LABEL_WIDTH = 9
# Already shown by the status line, or at the start and end of `stoker run` itself.
MUTED = frozenset({"daemon_started", "daemon_stopped", "trainer_stop_asked"})
# shown only in files and pipes
ROUTINE = frozenset({"checkpoint_pruned", "file_released", "source_released", "worker_recycled"})
# Seconds between two status lines of a daemon without live lines; the second value if only numbers differ.
STATUS_S, FIGURES_S = 5.0, 60.0
FIGURE = re.compile(r"\d[\d.,]*")
WHAT_FIRST = ("path", "reason", "step")  # logs sort fields by name; a reader wants these first
WAITS = ("trouble", "paused", "waits", "waiting_for")  # fields of a snapshot that explain a pause
STDOUT = 1
LOOK_EVERY_S = 0.25
Daemons = Mapping[str, Mapping[str, Any]]  # the result of read_status


class Output:
    """Prints lines and refreshes the live lines; goes silent once the terminal or the pipe is gone."""

    def __init__(self, layout: StateLayout, *, headless: bool, quiet: bool) -> None:
        self._quiet = quiet
        self._person = not headless and sys.stdout.isatty()
        self._footer = Footer(STDOUT)
        self._live = self._person and self._footer.shown
        self._events = EventTail(layout)
        self._events.new()  # drops events of earlier runs
        self._texts: dict[str, tuple[str, float]] = {}  # each daemon's last status line and its time

    def say(self, level: str, text: str, label: str = "") -> None:
        """Prints a line with the time of day."""
        if self._quiet and level not in ("warning", "error"):
            return
        label = f"{label:<{LABEL_WIDTH}}" if label else ""
        if self._person:
            self.write(self._footer.line(text, level, label))
        else:
            self.write(f"{time.strftime('%H:%M:%S')} {label}{text}\n".encode("utf-8", "replace"))

    def write(self, data: bytes) -> None:
        """Prints the bytes unchanged."""
        try:
            os.write(STDOUT, data)
        except OSError:  # the terminal or the pipe is gone
            return

    def refresh(self, now: float, status: Daemons) -> None:
        """Prints new events of these daemons, then their status; now is monotonic seconds."""
        for event in self._events.new():
            daemon, word, level = event["daemon"], str(event.get("event")), str(event.get("level", "info"))
            is_shown = daemon in status and word not in MUTED
            if is_shown and not (self._person and word in ROUTINE):
                self.say(level, sentence(event) if self._person else event_line(event), LABELS[daemon])
        if self._quiet:
            return
        if self._live:
            lines = [live_line(daemon, about) for daemon, about in status.items()]
            self._footer.show(*lines, colours=[state_colour(about) for about in status.values()])
            return
        for daemon, about in status.items():
            text = str(about["body"].get("text", ""))
            if about["running"] and is_due(text, now, *self._texts.get(daemon, ("", 0.0))):
                self._texts[daemon] = text, now
                self.say("info", text, LABELS[daemon])

    def close(self) -> None:
        self._footer.clear()


def is_due(text: str, now: float, last: str, last_at: float) -> bool:
    """Returns whether to print a status line, given the last line and its time."""
    if not text or text == last:
        return False
    figures_alone = FIGURE.sub("", text) == FIGURE.sub("", last)
    return not last or now - last_at >= (FIGURES_S if figures_alone else STATUS_S)


def live_line(daemon: str, about: Mapping[str, Any]) -> Callable[[int], str]:
    """Returns a function from a width to a line with the daemon's progress."""
    body = about["body"] if about["running"] else {"text": "not running"}
    parts = str(body.get("text") or "starting").split(", ")
    if daemon == DOWNLOAD_WATCHDOG and "files" in body:
        parts = list(download_parts(body))
    elif daemon == STAGE_SHARD and "files_of" in body:
        parts = list(shard_parts(body))
    elif daemon == TRAIN_SUPERVISOR:
        body = {"bytes_done": body.get("step"), "bytes_of": body.get("steps")}
    label = f"{LABELS[daemon]:<{LABEL_WIDTH}}"
    return lambda width: label + progress_line(parts, body, width - LABEL_WIDTH)


def state_colour(about: Mapping[str, Any]) -> str:
    """Returns the colour of a daemon's line: green at work, yellow waiting, red failed, dim stopped."""
    body = about["body"]
    if body.get("run_state") in ("failed", "halted"):
        return RED
    if not about["running"]:
        return DIM if not body or body.get("exit_code") == 0 else RED
    return YELLOW if any(body.get(key) for key in WAITS) else GREEN


def event_line(event: Mapping[str, Any]) -> str:
    """Returns an event as a line for a file or a pipe: its word, its fields, its sentence."""
    fields = {
        key: value
        for key, value in event.items()
        if key not in HIDDEN and key != "message" and value is not None
    }
    what = {key: fields.pop(key) for key in WHAT_FIRST if key in fields}
    said = f"- {text}" if (text := event.get("message") or meaning(event)) else ""
    return " ".join(filter(None, [str(event.get("event")), format_fields({**what, **fields}), said]))


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
