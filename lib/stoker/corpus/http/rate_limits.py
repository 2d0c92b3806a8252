"""Rate limits of transfers: one bandwidth for all files, and a least rate for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Bandwidth:
    """A bucket that fills with `rate` bytes per second, up to a second's worth; None is without limit.

    take() books bytes that have arrived and returns how long to pause: while a reader pauses, TCP's window
    closes and the server sends no more. Thread-safe; all readers share one debt.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rate = rate
        self._full_at = clock()  # when the bucket will be full again

    def take(self, size: int) -> float:
        """Books `size` bytes; returns the seconds to pause before reading on."""
        with self._lock:
            if self._rate is None:
                return 0.0
            now = self._clock()
            self._full_at = max(self._full_at, now - 1.0) + size / self._rate
            return max(0.0, self._full_at - now)


class RateWatch:
    """Detects a server that sends too slowly: fewer than `least` bytes per second over `window_s` seconds.

    Only the seconds spent waiting for the network count, so Stoker's own limit, a slow disk or a pause of
    this process is never blamed on the server.
    """

    def __init__(self, least: float, window_s: float) -> None:
        self._least, self._window_s = least, window_s
        self._waited_s = self._bytes = 0.0

    def add(self, waited_s: float, size: int) -> bool:
        """Records a read that waited so long for so many bytes; True when the server is too slow."""
        self._waited_s += waited_s
        self._bytes += size
        if self._waited_s < self._window_s:
            return False
        is_slow = self._bytes < self._least * self._waited_s
        self._waited_s = self._bytes = 0.0
        return is_slow
