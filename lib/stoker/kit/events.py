"""A daemon's log and its events: an event is a chained entry on disk, a line of the log, and a count.

The log has one fact per line, an event word and key=value; under systemd native journal fields.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.kit.event_types import event_type, message_id
from stoker.kit.terminal import STDERR, Footer, sentence
from stoker.store.errors import StorageError
from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import as_text, utc_now
from stoker.systemd.journal import Journal, is_journal

BUDGET_BYTES = 4 << 20  # of one daemon's event log, including the rotated file
ROUTINE_S = 60.0  # between two routine lines in the journal
REPEAT_S = 300.0  # between two events of one lasting problem
PRIORITIES = {"info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog(3)
_PLAIN = re.compile(r"[\w./:@%+,=*\[\]-]+")


class Log:
    """Writes to the journal when standard error is connected to the journal, else lines to standard error.

    The journal gets the first line of each routine word, then one line a minute about routine work, with a
    count of the others, which are events on disk. Journal and terminal get sentences, the journal with the
    fields beside them; any other output key=value. A line that cannot be written is lost in silence: a
    failing log must not stop a daemon.
    """

    def __init__(
        self, daemon: str, pipeline: str, file: str = "", environ: Mapping[str, str] = os.environ
    ) -> None:
        self.daemon, self.pipeline, self._file = daemon, pipeline, file
        self._tty = sys.stderr.isatty()
        self.footer = Footer(environ=environ)
        self._routine_at, self._held = -ROUTINE_S, Counter[str]()  # held back from the journal since then
        self._told = set[str]()  # routine words that the journal has once: the first of each is no routine
        self._journal = Journal() if is_journal(STDERR, environ) else None

    def info(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about normal work."""
        self.write("info", event, message, fields)

    def warning(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about a failure that the daemon handled."""
        self.write("warning", event, message, fields)

    def error(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about a failure that needs an operator."""
        self.write("error", event, message, fields)

    def critical(self, event: str, message: str = "", **fields: Any) -> None:
        """Writes a line about something that has ended and stays so until an operator acts."""
        self.write("critical", event, message, fields)

    def write(self, level: str, event: str, message: str, fields: Mapping[str, Any]) -> None:
        """Writes one line; level is a key of PRIORITIES."""
        fields = {**({"message": message} if message else {}), **fields}
        if self._journal is not None and self._to_journal(level, event, fields):
            return
        if self._tty:
            data = self.footer.line(sentence({**fields, "event": event}), level)
        else:
            text = format_fields(fields)
            who = f"daemon={self.daemon} pipeline={self.pipeline}"
            line = f"{utc_now()} level={level} {who} event={event} {text}"
            data = line.rstrip().encode("utf-8", "replace") + b"\n"
        try:
            os.write(2, data)
        except OSError:  # the terminal or the pipe is gone; the event log still has the event
            return

    def _to_journal(self, level: str, event: str, fields: Mapping[str, Any]) -> bool:
        assert self._journal is not None
        known = event_type(event)
        if known is not None and known.routine and level == "info":
            now = time.monotonic()
            if event in self._told and now - self._routine_at < ROUTINE_S:
                self._held[event] += 1
                return True
            self._routine_at = now
            self._told.add(event)
        text = sentence({**fields, "event": event})
        if self._held and level == "info":
            words = ", ".join(f"{count} {word}" for word, count in self._held.most_common())
            text = f"{text} (besides: {words})"
            self._held.clear()
        entry = {
            "MESSAGE": text,
            "PRIORITY": str(PRIORITIES[level]),
            "SYSLOG_IDENTIFIER": "stoker-" + self.daemon.replace("_", "-"),
            **({"MESSAGE_ID": message_id(event)} if known else {}),
            "STOKER_EVENT": event,
            "STOKER_PIPELINE": self.pipeline,
            "STOKER_PIPELINE_FILE": self._file,
            "STOKER_DAEMON": self.daemon,
        }
        for name, value in fields.items():
            entry.setdefault("STOKER_" + re.sub(r"\W", "_", name).upper(), _words(value))
        return self._journal.send(entry)  # full or restarting: standard error is connected to the journal too


class Events:
    """The only writer of events/<daemon>.jsonl. A failing disk stops nothing: the log says so once."""

    def __init__(self, layout: StateLayout, log: Log, counted: Counter[str]) -> None:
        self._path = layout.events(log.daemon)
        self._log = log
        self._counted = counted
        self._file: ChainedLog | None = None
        self._seq = 0
        self._failing = False

    def record(self, event: str, **fields: Any) -> None:
        """Writes the event to the file, the log and the counters; `message` is its sentence for people.

        `level` is given where it is not the table's.
        """
        known = event_type(event)
        level = fields.pop("level", "") or (known.level if known else "info")
        fields = {name: as_text(value) if isinstance(value, str) else value for name, value in fields.items()}
        shown = dict(fields)
        self._log.write(level, event, str(shown.pop("message", "")), shown)
        self._counted[event] += 1
        entry = {**fields, "time": utc_now(), "event": event, "level": level, "pipeline": self._log.pipeline}
        try:
            self._append(entry)
        except (StorageError, FileNotFoundError) as error:
            if not self._failing:
                self._failing = True
                self._log.error("events_unwritable", f"{error}; until then events are in this log alone")
        else:
            if self._failing:
                self._failing = False
                self._log.info("events_writable", "events are kept again")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            self._file = ChainedLog(self._path, rotate_bytes=BUDGET_BYTES)
            last = (self._file.last or {}).get("seq", 0)
            self._seq = last if isinstance(last, int) else 0
            for damage in self._file.damage:
                self._log.warning("events_damaged", damage, path=str(self._path))
        # Not durable: an event is not worth a wait for the disk; decisions are made durable where they are
        # made.
        self._file.append({**entry, "seq": self._seq + 1}, durable=False)
        self._seq += 1


class Alerts:
    """Records lasting problems, by event and subject; none twice within `repeat_s` seconds."""

    def __init__(self, events: Events, repeat_s: float = REPEAT_S) -> None:
        self._events = events
        self._repeat_s = repeat_s
        self._at: dict[tuple[str, str], float] = {}
        self._standing: set[tuple[str, str]] = set()

    def raise_(self, event: str, about: str = "", *, repeat: bool = True, **fields: Any) -> None:
        """Records the event unless it is recent, or the alert is already raised and `repeat` is False."""
        key, now = (event, about), time.monotonic()
        if now - self._at.get(key, -self._repeat_s) < self._repeat_s:
            return
        if repeat or key not in self._standing:
            self._at[key] = now
            self._standing.add(key)
            self._events.record(event, **fields)

    def clear(self, event: str, about: str = "", *, tell: str = "", **fields: Any) -> None:
        """Ends an alert, and records the event `tell` if the alert was recorded."""
        if (event, about) in self._standing:
            self._standing.discard((event, about))
            if tell:
                self._events.record(tell, **fields)


class EventTail:
    """Reads every daemon's events; each call of new() returns the events since the call before."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._stamps: dict[str, tuple[int, int, int] | None] = dict.fromkeys(DAEMONS)
        self._seen = dict.fromkeys(DAEMONS, 0)

    def new(self) -> list[dict[str, Any]]:
        """Returns the new events, oldest first, each with its `daemon`."""
        events = [{"daemon": daemon, **entry} for daemon in DAEMONS for entry in self._new(daemon)]
        return sorted(
            events, key=lambda event: (str(event.get("time")), event["daemon"], event.get("seq", 0))
        )

    def _new(self, daemon: str) -> list[dict[str, Any]]:
        path = self._layout.events(daemon)
        try:
            found = path.stat()
        except FileNotFoundError:
            return []
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if stamp == self._stamps[daemon]:
            return []
        self._stamps[daemon] = stamp
        entries = read_log(path, rotated=True).entries
        new = [entry for entry in entries if entry.get("seq", 0) > self._seen[daemon]]
        self._seen[daemon] = max((entry["seq"] for entry in new), default=self._seen[daemon])
        return new


def format_fields(fields: Mapping[str, Any]) -> str:
    """Returns key=value pairs on one line; a value that is not a plain word is quoted as a JSON string."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, bool | int | list | tuple | dict):
        return json.dumps(value, separators=(",", ":"), default=str)
    return str(value)


def _quoted(value: Any) -> str:
    words = _words(value)
    if _PLAIN.fullmatch(words):
        return words
    # File names come from outside: characters that a terminal would obey or treat as a line end are escaped.
    quoted = json.dumps(words, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in quoted)
