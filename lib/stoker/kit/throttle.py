"""Words of progress at a pace that a daemon can listen to, however fast the bytes go by."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 0.5


def paced(tell: Callable[[str, int], None]) -> Callable[[str, int], None]:
    """A callback, told what is done and how many bytes of it, that passes on one word in EVERY_S seconds."""
    told = -EVERY_S

    def progress(what: str, done: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= EVERY_S:
            told = now
            tell(what, done)

    return progress
