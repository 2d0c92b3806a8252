"""A run's wait for data: what for, since when, and whether that is worth an event."""

from __future__ import annotations

import math

from stoker.plan.growth import ENOUGH
from stoker.store.names import utc_now

_PREFIX = "waiting for data: "


def waiting_words(why: str) -> str:
    """What is going on, from the plan's reason for having no more entries."""
    if why in ("", ENOUGH):
        why = "shard sets to be proven"
    return _PREFIX + why.removeprefix("waiting for ")


class DataWait:
    """The wait that goes on; `what` and `since` (UTC) are empty while there is none."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self.what = self.since = ""
        self._began, self._due = 0.0, math.inf

    def note(self, doing: str, now: float) -> bool:
        """Take in what is waited for, "" when the run goes on; True once in a wait, after hold_s.

        `now` is monotonic seconds.
        """
        if doing and not self.what:
            self.since, self._began, self._due = utc_now(), now, now + self._hold_s
        elif not doing:
            self.since, self._due = "", math.inf
        self.what = doing.removeprefix(_PREFIX)
        if now < self._due:
            return False
        self._due = math.inf
        return True

    def lasted_s(self, now: float) -> float:
        """How long it has lasted."""
        return now - self._began if self.what else 0.0
