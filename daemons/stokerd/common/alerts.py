"""Alerts: events of what lasts, recorded once, again while it lasts if that helps, and when it is over."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.events import Events

REPEAT_S = 300.0


class Alerts:
    """What was raised, by event word and subject; nothing is recorded twice within `repeat_s` seconds."""

    def __init__(self, events: Events, repeat_s: float = REPEAT_S) -> None:
        self._events = events
        self._repeat_s = repeat_s
        self._at: dict[tuple[str, str], float] = {}
        self._standing: set[tuple[str, str]] = set()

    def raise_(
        self, event: str, about: str = "", *, level: str = "warning", repeat: bool = True, **fields: Any
    ) -> None:
        """Record the event, unless it was recorded a short while ago, or stands and `repeat` is False."""
        key, now = (event, about), time.monotonic()
        if now - self._at.get(key, -self._repeat_s) < self._repeat_s:
            return
        if repeat or key not in self._standing:
            self._at[key] = now
            self._standing.add(key)
            self._events.record(event, level=level, **fields)

    def clear(self, event: str, about: str = "", *, tell: str = "", **fields: Any) -> None:
        """End an alert; `tell` is the event that says so, if the alert was recorded."""
        if (event, about) in self._standing:
            self._standing.discard((event, about))
            if tell:
                self._events.record(tell, **fields)
