"""How far the hashing of a folder has come: bytes, the rate of the last minute, the time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.observe.rate import Pace

OVER_S = 60.0


class HashingPace:
    """Hears what is read of each file in hand."""

    def __init__(self) -> None:
        self._pace = Pace(OVER_S)
        self._in_hand: dict[str, int] = {}
        self._done = 0  # bytes of files that are done

    def began(self, path: str) -> None:
        """A file was given to a worker."""
        self._in_hand[path] = 0

    def heard(self, path: str, message: Mapping[str, Any]) -> None:
        """So much of it was read."""
        if message["kind"] == "hashed" and path in self._in_hand:
            self._in_hand[path] = int(message["bytes"])

    def ended(self, path: str, size: int) -> None:
        """It is done; `size` bytes of it count."""
        self._in_hand.pop(path, None)
        self._done += size

    def shown(self, whole: int, unproven: int) -> dict[str, Any]:
        """For the status: of `whole` bytes so many are proven, of the `unproven` ones some are read."""
        reading = sum(self._in_hand.values())
        self._pace.note(self._done + reading, time.monotonic())
        left = max(0, unproven - reading)
        left_s = self._pace.left_s(left) if self._in_hand else None
        return {
            "bytes_of": whole,
            "bytes_done": max(0, whole - left),
            "rate_bytes_per_second": round(self._pace.per_second) if self._in_hand else 0,
            "eta_s": None if left_s is None or not left else round(left_s),
        }
