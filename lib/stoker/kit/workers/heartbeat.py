"""Signs of life from long reading: a worker that says nothing for long is taken for hung."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 5.0


def heartbeat(report: Callable[..., None], name: str) -> Callable[[int], None]:
    """A progress callback, told bytes, that sends a `progress` message every few seconds at most."""
    told = time.monotonic()

    def progress(done: int) -> None:
        nonlocal told
        if time.monotonic() - told >= EVERY_S:
            told = time.monotonic()
            report("progress", reading=name, bytes=done)

    return progress
