"""What `stoker run` prints: each daemon's own status line when it changed, and every event worth a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.kit.log import format_fields
from stoker.observe.status import read_status
from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR, StateLayout
from stoker.store.log import read_log

LABELS = {DOWNLOAD_WATCHDOG: "download", STAGE_SHARD: "shard", TRAIN_SUPERVISOR: "train"}
# Said already by the status line or by the start and end of `stoker run` itself.
MUTED = frozenset({"daemon_started", "daemon_stopped", "trainer_stop_asked"})
STATUS_S = 5.0  # between two status lines of one daemon
WHAT_FIRST = ("path", "reason", "step")  # logs keep their fields by the alphabet; a reader wants these first
HIDDEN = frozenset({"time", "seq", "event", "level", "pipeline", "daemon", "prev", "message", "v"})


class Progress:
    """What the daemons record and show as (level, line) pairs: only what is new since the last call."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._stamps: dict[str, tuple[int, int] | None] = {daemon: self._stamp(daemon) for daemon in DAEMONS}
        self._seen = {daemon: self._last_seq(daemon) for daemon in DAEMONS}
        self._texts: dict[str, str] = {}
        self._due: dict[str, float] = {}

    def lines(self, now: float) -> Iterator[tuple[str, str]]:
        """New events in each daemon's order, then status lines that are due; now is monotonic seconds."""
        for daemon in DAEMONS:
            for event in self._new_events(daemon):
                if event.get("event") not in MUTED:
                    yield str(event.get("level", "info")), f"{LABELS[daemon]:<9}{event_line(event)}"
        for daemon, status in read_status(self._layout).items():
            text = str(status["body"].get("text", ""))
            fresh = status["running"] and text and text != self._texts.get(daemon)
            if fresh and now >= self._due.get(daemon, 0.0):
                self._texts[daemon], self._due[daemon] = text, now + STATUS_S
                yield "info", f"{LABELS[daemon]:<9}{text}"

    def _new_events(self, daemon: str) -> list[Mapping[str, Any]]:
        stamp = self._stamp(daemon)
        if stamp == self._stamps[daemon]:
            return []
        self._stamps[daemon] = stamp
        entries = read_log(self._layout.events(daemon), rotated=True).entries
        new = [entry for entry in entries if entry.get("seq", 0) > self._seen[daemon]]
        if new:
            self._seen[daemon] = new[-1]["seq"]
        return list(new)

    def _last_seq(self, daemon: str) -> int:
        entries = read_log(self._layout.events(daemon), rotated=True).entries
        return int(entries[-1].get("seq", 0)) if entries else 0

    def _stamp(self, daemon: str) -> tuple[int, int] | None:
        try:
            found = self._layout.events(daemon).stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size


def event_line(event: Mapping[str, Any]) -> str:
    """An event as one line: its word, its fields, its sentence."""
    fields = {key: value for key, value in event.items() if key not in HIDDEN and value is not None}
    what = {key: fields.pop(key) for key in WHAT_FIRST if key in fields}
    sentence = f"- {event['message']}" if event.get("message") else ""
    return " ".join(filter(None, [str(event.get("event")), format_fields({**what, **fields}), sentence]))
