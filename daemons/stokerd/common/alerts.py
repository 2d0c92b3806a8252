"""Records lasting problems as events: once, again while the problem lasts, and at its end."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.events import Events

REPEAT_S = 300.0


class Alerts:
    """The raised alerts, by event and subject; records none twice within `repeat_s` seconds."""

    def __init__(self, events: Events, repeat_s: float = REPEAT_S) -> None:
        self._events = events
        self._repeat_s = repeat_s
        self._at: dict[tuple[str, str], float] = {}
        self._standing: set[tuple[str, str]] = set()

    def raise_(
        self, event: str, about: str = "", *, level: str = "warning", repeat: bool = True, **fields: Any
    ) -> None:
        """Records the event unless it is recent, or the alert is already raised and `repeat` is False."""
        key, now = (event, about), time.monotonic()
        if now - self._at.get(key, -self._repeat_s) < self._repeat_s:
            return
        if repeat or key not in self._standing:
            self._at[key] = now
            self._standing.add(key)
            self._events.record(event, level=level, **fields)

    def clear(self, event: str, about: str = "", *, tell: str = "", **fields: Any) -> None:
        """Ends an alert, and records the event `tell` if the alert was recorded."""
        if (event, about) in self._standing:
            self._standing.discard((event, about))
            if tell:
                self._events.record(tell, **fields)
