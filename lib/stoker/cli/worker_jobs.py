"""A worker process of a command: heard until its end, and never left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.kit.loop import Waiter
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import Worker, WorkerExit
from stoker.kit.workers.pool import WorkerPool
from stoker.store.errors import StokerError

LOOK_S = 0.5
EXIT_UNAVAILABLE, EXIT_TERMINATED = 69, 143

Hear = Callable[[Worker, Mapping[str, Any]], None]


class WorkerFailed(StokerError):
    """A worker ended without a result; the exit code is its own where it gave one."""

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__(f"{what}: {ended.reason()}")
        code = ended.code or 0
        self.exit_code = code if code in range(64, 79) else EXIT_UNAVAILABLE


@contextlib.contextmanager
def worker_pool(most_rss_bytes: int | None = None) -> Iterator[WorkerPool[Any]]:
    """Workers that are stopped at the block's end; within it SIGTERM unwinds, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    waiter = Waiter()
    pool = WorkerPool[Any]("command", waiter, most_rss_bytes=most_rss_bytes)
    try:
        yield pool
    finally:
        pool.stop()
        waiter.close()
        signal.signal(signal.SIGTERM, before)


def work(
    activity: Activity,
    task: Mapping[str, Any],
    what: str,
    *,
    hear: Hear = lambda worker, message: None,
    most_rss_bytes: int | None = None,
) -> dict[str, Any]:
    """The result of one worker's task; raises WorkerFailed, which begins with `what`, where there is none."""
    with worker_pool(most_rss_bytes) as pool:
        pool.start(activity, what, task, None)
        while True:
            for job, messages, ended in pool.hear():
                for message in messages:
                    hear(job.worker, message)
                if ended is not None and ended.result is None:
                    raise WorkerFailed(what, ended)
                if ended is not None and ended.result is not None:
                    return ended.result
            pool.wait(LOOK_S)
