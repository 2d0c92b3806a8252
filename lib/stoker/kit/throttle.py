"""Limits the rate of progress reports so that a daemon can read them at any transfer speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVERY_S = 0.5
ALIVE_EVERY_S = 5.0  # a worker silent for too long is judged hung


def paced(report: Callable[..., Any], every_s: float = EVERY_S) -> Callable[..., None]:
    """Returns `report` as a callback that passes on one call in every_s seconds."""
    due = 0.0

    def progress(*about: Any) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every_s
            report(*about)

    return progress


def heartbeat(report: Callable[..., None], name: str) -> Callable[[int], None]:
    """Returns a callback for the bytes read so far that sends a `progress` message every few seconds."""
    return paced(lambda done: report("progress", reading=name, bytes=done), ALIVE_EVERY_S)
