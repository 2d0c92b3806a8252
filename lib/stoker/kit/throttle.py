"""Progress at a pace that a daemon can listen to, however fast the bytes go by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVERY_S = 0.5
ALIVE_EVERY_S = 5.0  # a worker that says nothing for long is taken for hung


def paced(report: Callable[..., Any], every_s: float = EVERY_S) -> Callable[..., None]:
    """Return `report` as a callback that passes on one call in every_s seconds."""
    due = 0.0

    def progress(*about: Any) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every_s
            report(*about)

    return progress


def heartbeat(report: Callable[..., None], name: str) -> Callable[[int], None]:
    """A progress callback for long reading, given bytes, that sends a `progress` message now and then."""
    return paced(lambda done: report("progress", reading=name, bytes=done), ALIVE_EVERY_S)
