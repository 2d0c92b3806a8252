"""Standing troubles, told without flooding: once, again every five minutes while they last, and their end."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.events import Events

REPEAT_S = 300.0


class Told:
    """What was told, by event word and what it is about."""

    def __init__(self, events: Events, repeat_s: float = REPEAT_S) -> None:
        self._events = events
        self._repeat_s = repeat_s
        self._at: dict[tuple[str, str], float] = {}

    def trouble(self, event: str, about: str = "", *, level: str = "warning", **fields: Any) -> None:
        """Record the event unless it was told of the same thing a short while ago."""
        now = time.monotonic()
        if now - self._at.get((event, about), -self._repeat_s) >= self._repeat_s:
            self._at[event, about] = now
            self._events.record(event, level=level, **fields)

    def over(self, event: str, about: str = "", *, tell: str = "", **fields: Any) -> None:
        """It is over: the next one is news; `tell` is the event that says so, if it was told at all."""
        if self._at.pop((event, about), None) is not None and tell:
            self._events.record(tell, **fields)
