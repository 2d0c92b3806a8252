"""Judges from a daemon's own events whether it ends uncleanly again and again.

systemd starts a daemon again without end, so nobody else would ever say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

ENDS, WITHIN = 3, timedelta(minutes=15)


@dataclass(frozen=True)
class CrashLoop:
    """`ends` unclean ends within 15 minutes; `last` is what the daemon said of the last one, if anything."""

    ends: int
    last: str

    def __str__(self) -> str:
        last = self.last or "without a word: a kill, a crash of the interpreter, or a power cut"
        minutes = WITHIN.total_seconds() / 60
        return (
            f"the daemon ended uncleanly {self.ends} times within {minutes:g} minutes, the last time {last}"
        )


def crash_loop(events: Iterable[Mapping[str, Any]], now: datetime) -> CrashLoop | None:
    """Returns the crash loop that a daemon beginning `now` is in; None without one, or where it is told.

    An end is unclean unless `daemon_stopped` tells of it: a kill, a power cut, an error. It counts when the
    next start finds it.
    """
    found: list[datetime] = []
    told: datetime | None = None
    is_open, last = False, ""
    for event in events:
        match event["event"]:
            case "daemon_started":
                if is_open:
                    found.append(_time(event))
                is_open, last = True, ""
            case "daemon_stopped":
                is_open = False
            case "daemon_failed":
                last = str(event.get("message", ""))
            case "daemon_crash_loop":
                told = _time(event)
    if not is_open or (told is not None and now - told <= WITHIN):
        return None
    ends = 1 + sum(now - time <= WITHIN for time in found)
    return CrashLoop(ends, last) if ends >= ENDS else None


def _time(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
