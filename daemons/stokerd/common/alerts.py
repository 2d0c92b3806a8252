"""Standing troubles, told without flooding: once, again while they last if it helps, and their end."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.events import Events

REPEAT_S = 300.0
WARN_EVERY_S = 60.0  # for what keeps everything from beginning


class Told:
    """What was told, by event word and what it is about; nothing is told twice within `repeat_s` seconds."""

    def __init__(self, events: Events, repeat_s: float = REPEAT_S) -> None:
        self._events = events
        self._repeat_s = repeat_s
        self._at: dict[tuple[str, str], float] = {}
        self._standing: set[tuple[str, str]] = set()

    def trouble(
        self, event: str, about: str = "", *, level: str = "warning", repeat: bool = True, **fields: Any
    ) -> None:
        """Record the event, unless it was told a short while ago, or stands and is not worth repeating."""
        key, now = (event, about), time.monotonic()
        if now - self._at.get(key, -self._repeat_s) < self._repeat_s:
            return
        if repeat or key not in self._standing:
            self._at[key] = now
            self._standing.add(key)
            self._events.record(event, level=level, **fields)

    def over(self, event: str, about: str = "", *, tell: str = "", **fields: Any) -> None:
        """It is over; `tell` is the event that says so, if the trouble was told."""
        if (event, about) in self._standing:
            self._standing.discard((event, about))
            if tell:
                self._events.record(tell, **fields)
