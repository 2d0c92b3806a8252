"""Bytes read and written by several threads, told in portions: enough to keep a quiet deadline away."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stoker.checkpoints.proof import Progress


def in_portions(tell: Callable[[int], None], portion_bytes: int) -> Progress:
    """A progress function that calls `tell` with the bytes done since the last time, portion by portion.

    It is given, by each thread, how far in bytes that thread's file is.
    """
    lock = threading.Lock()
    seen: dict[int, int] = {}
    untold = 0

    def progress(size: int) -> None:
        nonlocal untold
        with lock:
            thread = threading.get_ident()
            before = seen.get(thread, 0)
            seen[thread] = size
            untold += size - before if size > before else size
            if untold < portion_bytes:
                return
            done, untold = untold, 0
        tell(done)

    return progress
