"""Hears a pool's workers as their daemon does."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from support.waiting import LONG_S


def heard(pool: WorkerPool[Any], subject: str) -> WorkerExit:
    """Wait as a daemon does until the subject's worker ended."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        pool.wait(0.5)
        for job, _, ended in pool.hear():
            if job.subject == subject and ended is not None:
                return ended
    raise AssertionError(f"no end of {subject}")
