"""Being asked to stop: SIGTERM or SIGINT, by flag once there is work to save, at once before that."""

from __future__ import annotations

import signal
from types import FrameType


class StopAsked(BaseException):
    """Raised by the signal handler while nothing has been done yet; no `except Exception` swallows it."""


class Stop:
    """Whether a stop was asked; while `at_once`, the handler raises StopAsked into what is being loaded."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once = True

    def install(self) -> None:
        """Take over SIGTERM and SIGINT; main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        if self.at_once and first:
            raise StopAsked
