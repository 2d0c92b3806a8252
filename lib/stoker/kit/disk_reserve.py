"""A daemon's ballast on the state disk: given back when that is full, made again when space returns."""

from __future__ import annotations

import time

from stoker.kit.events import Events
from stoker.store.ballast import Ballast

LOOK_EVERY_S = 2.0
NEARLY_FULL_BYTES = 64 << 10  # a record would go in, the next would not


class Reserve:
    """Looks after the ballast; `spent` while the state disk is full: only what is under way is recorded."""

    def __init__(self, ballast: Ballast, events: Events) -> None:
        self._ballast, self._events = ballast, events
        self._look_at = 0.0
        self.spent = False
        ballast.hold()

    def give_back(self, reason: str) -> bool:
        """The state disk is full: make room for what must be written now; False when none was left."""
        given = self._ballast.give_back()
        if given and not self.spent:
            self.spent = True
            self._events.record("state_disk_full", level="error", reason=reason)
        return given

    def look(self) -> None:
        """Every few seconds: give it back before the first write fails, make it again once there is room."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        if self.spent:
            if self._ballast.has_room():
                self._ballast.hold()
                self.spent = False
                self._events.record("state_disk_has_room")
        elif self._ballast.held:
            if self._ballast.free_bytes() < NEARLY_FULL_BYTES:
                self.give_back(f"the disk of {self._ballast.path.parent} is full; free space on it")
        else:
            self._ballast.hold()
