"""Waiting in tests: on a condition with a deadline, never for a fixed time."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# For what must happen at last: long for the slowest machine, and nobody waits for it where all is well.
# Below pytest's own limit for a test, whose word is only a traceback.
LONG_S = 60.0


def wait_until(condition: Callable[[], T], timeout_s: float = LONG_S, what: str = "the condition") -> T:
    """Poll until the condition is true and return its value; fail the test after timeout_s seconds."""
    start = time.monotonic()
    began = used_s()
    while True:
        waited = time.monotonic() - start  # before the look: who was kept from looking looks once more
        value = condition()
        if value:
            return value
        if waited > timeout_s:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        began = rest(began, max(0.02, waited / 30))  # any look, once it waits for long


def rest(began: float, least_s: float = 0.02) -> float:
    """Sleep after a look that began then (used_s), longer after a dearer one; returns the next begin."""
    time.sleep(min(max(least_s, 19 * (used_s() - began)), 0.3))
    return used_s()


def used_s() -> float:
    """The processor's seconds of this thread and of the children that were waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime
