"""When writers that met a full disk go on: as soon as statvfs shows room again, and no later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["hot", "warm", "state"]

LOOK_S = 3.0  # between a failed write and the next
ENOUGH_BYTES, ENOUGH_SHARE = 16 << 20, 0.02  # the lesser of both counts as room


@dataclass(frozen=True)
class Full:
    """A place where a write failed for want of space, last at a monotonic time, and how often in a row."""

    failed_at: float
    reason: str
    times: int = 1

    def may_try(self, free_bytes: int | None, total_bytes: int, now: float) -> bool:
        """Whether to write again: there is room by a measure taken after the failure (None: none was).

        Where statvfs sees room and the write failed all the same (a quota, no inodes), trying is the only way
        to know, at the same small distance.
        """
        enough = min(ENOUGH_BYTES, int(total_bytes * ENOUGH_SHARE))
        return free_bytes is not None and free_bytes >= enough and now - self.failed_at >= LOOK_S
