"""Judges from a daemon's own events whether it ends uncleanly again and again.

systemd starts a daemon again without end, so nobody else would ever say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

ENDS, WITHIN = 3, timedelta(minutes=15)


SILENT = "without a word: a kill, a crash of the interpreter, or a power cut"


@dataclass(frozen=True)
class UncleanEnds:
    """The `ends` of 15 minutes, the last one among them; `last` is what the daemon said of that."""

    ends: int
    last: str
    told: bool  # as a crash loop, within the time

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


def unclean_ends(events: Iterable[Mapping[str, Any]], now: datetime) -> UncleanEnds | None:
    """Returns the unclean ends of a daemon beginning `now`; None where its last end was in order.

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
    ends = 1 + sum(now - time <= WITHIN for time in found)
    return UncleanEnds(ends, last, told is not None and now - told <= WITHIN) if is_open else None


def _time(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
