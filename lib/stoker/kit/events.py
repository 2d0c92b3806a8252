"""A daemon's events: a chained log on disk, and a log line and a count for each event."""

from __future__ import annotations

from typing import Any

from stoker.kit.log import Log
from stoker.kit.metrics import Metrics
from stoker.store.errors import StorageError
from stoker.store.layout import DAEMONS, StateLayout
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import as_text, utc_now

BUDGET_BYTES = 4 << 20  # of one daemon's event log, including the rotated file


class Events:
    """The only writer of events/<daemon>.jsonl. A failing disk stops nothing: the log says so once."""

    def __init__(self, layout: StateLayout, daemon: str, pipeline: str, log: Log, metrics: Metrics) -> None:
        self._path = layout.events(daemon)
        self._pipeline = pipeline
        self._log = log
        self._counted = metrics.events
        self._file: ChainedLog | None = None
        self._seq = 0
        self._failing = False

    def record(self, event: str, level: str = "info", **fields: Any) -> None:
        """Writes the event to the file, the log and the counters; `message` is its sentence for people."""
        fields = {name: as_text(value) if isinstance(value, str) else value for name, value in fields.items()}
        shown = dict(fields)
        self._log.write(level, event, str(shown.pop("message", "")), shown)
        self._counted[event] += 1
        entry = {**fields, "time": utc_now(), "event": event, "level": level, "pipeline": self._pipeline}
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


def read_events(layout: StateLayout) -> list[dict[str, Any]]:
    """Returns every daemon's events, oldest first, each with its `daemon`."""
    return EventTail(layout).new()
