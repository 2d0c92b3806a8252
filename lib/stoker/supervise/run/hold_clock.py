"""How long a run's plan has waited for each missing file, whatever becomes of its supervisor meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.store.record import read_or_set_aside, write_record

EVERY_S = 10.0  # between two writings, at most: what a kill costs
SHARE = 0.1  # of the hold, where that is less


class HoldClock:
    """`plan.hold` as seconds waited, counted on the monotonic clock and kept in a record.

    Time during which no supervisor runs does not count: after a power cut of a day nothing is passed over
    that the watchdog is about to fetch. Nor does a wall clock that is set.
    """

    def __init__(self, file: Path, quarantine: Path) -> None:
        self._file = file
        body = read_or_set_aside(file, quarantine) or {}
        self._waited: dict[str, float] = body.get("waited_s", {})  # as it is on disk
        self._since: Mapping[str, float] | None = None
        self._due = 0.0

    def since(self, now: float) -> Mapping[str, float]:
        """When each began to be waited for, in monotonic seconds, as if it had been without a break."""
        if self._since is None:
            self._since = {path: now - waited for path, waited in self._waited.items()}
        return self._since

    def keep(self, since: Mapping[str, float], now: float, hold_s: float) -> None:
        """Take down who is waited for now; more than the hold need not be known of anybody."""
        self._since = since
        waited = {path: round(min(now - start, hold_s), 1) for path, start in since.items()}
        if waited != self._waited and now >= self._due:
            write_record(self._file, {"v": 1, "waited_s": waited})
            self._waited, self._due = waited, now + min(EVERY_S, SHARE * hold_s)
