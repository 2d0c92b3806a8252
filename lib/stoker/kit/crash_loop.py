"""Judges from a daemon's own events whether it ends uncleanly again and again.

systemd starts a daemon again without end, so nobody else would ever say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

ENDS, WITHIN = 3, timedelta(minutes=15)


SILENT = "without a message: a kill, a crash of the interpreter, or a power cut"


@dataclass(frozen=True)
class UncleanEnds:
    """The `ends` of 15 minutes, the last one among them; `last` is what the daemon said of that."""

    ends: int  # 0: the last end was in order
    last: str
    told: bool  # as a crash loop, within the time
    latest: datetime | None  # the last start after an unclean end; the one that begins now may be it

    @property
    def is_loop(self) -> bool:
        """Whether they are a crash loop that is to be told."""
        return self.ends >= ENDS and not self.told

    def __str__(self) -> str:
        minutes = WITHIN.total_seconds() / 60
        return (
            f"the daemon ended uncleanly {self.ends} times within {minutes:g} minutes, "
            f"the last time {self.last}"
        )


def unclean_ends(events: Iterable[Mapping[str, Any]], now: datetime) -> UncleanEnds:
    """Returns the unclean ends of a daemon beginning `now`.

    An end is unclean unless `daemon_stopped` tells of it: a kill, a power cut, an error. It counts when the
    next start finds it.
    """
    found: list[datetime] = []
    told: datetime | None = None
    is_open, last = False, SILENT
    for event in events:
        match event["event"]:
            case "daemon_started":
                if is_open:
                    found.append(_time(event))
                is_open, last = True, SILENT
            case "daemon_stopped":
                is_open = False
            case "daemon_failed":
                last = str(event.get("message") or SILENT)
            case "daemon_crash_loop":
                told = _time(event)
    if is_open:
        found.append(now)
    ends = sum(now - time <= WITHIN for time in found) if is_open else 0
    return UncleanEnds(ends, last, told is not None and now - told <= WITHIN, max(found, default=None))


def _time(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
