"""Runs a worker process for a command and waits for its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.loop import Waiter
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stoker.store.errors import StokerError

LOOK_S = 0.5
EXIT_UNAVAILABLE = 69


class WorkerFailed(StokerError):
    """A worker ended without a result; its exit code is used if it is in the range of sysexits.h."""

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__(f"{what}: {ended.reason()}")
        code = ended.code or 0
        self.exit_code = code if code in range(64, 79) else EXIT_UNAVAILABLE


def work(
    activity: Activity,
    task: Mapping[str, Any],
    what: str,
    hear: Callable[[Mapping[str, Any]], None] = lambda message: None,
) -> dict[str, Any]:
    """Returns the result of a worker's task; without a result raises WorkerFailed, beginning with `what`."""
    with contextlib.closing(Waiter()) as waiter:
        pool = WorkerPool[None]("command", waiter)
        try:
            pool.start(activity, what, task, None)
            while True:
                for _, messages, ended in pool.hear():
                    for message in messages:
                        hear(message)
                    if ended is not None and ended.result is None:
                        raise WorkerFailed(what, ended)
                    if ended is not None and ended.result is not None:
                        return ended.result
                pool.wait(LOOK_S)
        finally:
            pool.stop()
