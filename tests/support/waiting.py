"""Waiting in tests: on a condition with a deadline, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# For what must happen at last: long for the slowest machine, and nobody waits for it where all is well.
# Below pytest's own limit for a test, whose word is only a traceback.
LONG_S = 60.0


def wait_until(condition: Callable[[], T], timeout_s: float = LONG_S, what: str = "the condition") -> T:
    """Poll until the condition is true and return its value; fail the test after timeout_s seconds."""
    deadline, began = time.monotonic() + timeout_s, time.thread_time()
    while True:
        last = time.monotonic() > deadline  # before the look: who was kept from looking looks once more
        value = condition()
        if value:
            return value
        if last:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        began = rest(began)


def rest(began: float, least_s: float = 0.02) -> float:
    """Sleep after a look that began then (thread_time), longer after a dearer one; returns the next begin."""
    time.sleep(min(max(least_s, 19 * (time.thread_time() - began)), 0.3))
    return time.thread_time()
