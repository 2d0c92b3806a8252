"""What the files on their way still need of the landing's disk, in the ledger that all daemons read."""

from __future__ import annotations

import time

from stoker.observe.ledger import Claim, write_claims
from stoker.store.layout import DOWNLOAD_WATCHDOG, StateLayout

EVERY_S = 10.0  # between two writings: whoever reads the ledger is woken by each
STEP_BYTES = 64 << 20  # a change that is no news


class LandingClaim:
    """Keeps the one claim; written when it begins, ends, or changed much."""

    def __init__(self, layout: StateLayout, root: str) -> None:
        self._layout, self._root = layout, root
        self._written = -1  # bytes; none of this daemon's yet
        self._due = 0.0

    def keep(self, device: int | None, size: int) -> None:
        """Claim so many bytes of the landing's disk; nothing before its device is known."""
        if device is None and self._written < 0 and not size:
            self._write(())  # what an earlier daemon claimed
            return
        begins = size > 0 >= self._written
        is_news = begins or (not size and self._written > 0) or abs(size - self._written) >= STEP_BYTES
        if device is None or not is_news or (not begins and time.monotonic() < self._due):
            return
        self._written = size
        self._write((Claim(device, self._root, "landing", size),) if size else ())

    def end(self) -> None:
        """Claim nothing."""
        if self._written > 0:
            self._written = 0
            self._write(())

    def _write(self, claims: tuple[Claim, ...]) -> None:
        self._written = max(0, self._written)
        self._due = time.monotonic() + EVERY_S
        write_claims(self._layout, DOWNLOAD_WATCHDOG, claims)
