"""Tells when nothing comes for every file waits for its next try: what the server says, and until when."""

from __future__ import annotations

import time

from stoker.corpus.fetch.transfers import Transfers
from stoker.kit.events import Events
from stoker.store.names import utc_at
from stokerd.common.alerts import Alerts

LONG_S = 60.0  # a shorter wait is everyday business
WAITS, GO_ON = "downloads_wait", "downloads_go_on"


class FetchWaits:
    """`text` says why nothing comes now; empty while something does, or nothing is to come.

    The event is for a wait that is long by itself, and for tries that bring nothing for `stall_s` seconds.
    """

    def __init__(self, events: Events, stall_s: float) -> None:
        self._told, self._stall_s = Alerts(events), stall_s
        self._durable = 0
        self._since: float | None = None
        self.text = ""

    def look(self, transfers: Transfers, now: float) -> None:
        """How it stands."""
        held = transfers.held_up()
        if transfers.durable != self._durable or not transfers:
            self._durable, self._since = transfers.durable, None
            self._told.clear(WAITS, tell=GO_ON)
        self.text = ""
        if held is None:
            return
        if self._since is None:
            self._since = now
        left_s = max(0.0, held.due_at - now)
        files = f"{held.files:,} file{'s' * (held.files != 1)}"
        self.text = f"{files} wait, tried again at {utc_at(time.time() + left_s)}: {held.why}"
        if left_s >= LONG_S or now - self._since >= self._stall_s:
            self._told.raise_(
                WAITS, repeat=False, files=held.files, reason=held.why, retry_in_s=round(left_s)
            )
