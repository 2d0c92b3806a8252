"""Waits for descriptors of any number: select(2) takes none above 1,023.

The guard imports this module: standard library only, and none of its big modules.
"""

from __future__ import annotations

import math
import select


def readable(*descriptors: int, timeout_s: float | None = None) -> set[int]:
    """Returns the descriptors that are readable or at their end, after at most timeout_s (None: no limit)."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    wait_ms = None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000)
    return {descriptor for descriptor, _ in poll.poll(wait_ms)}
