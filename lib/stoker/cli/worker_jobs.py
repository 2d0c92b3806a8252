"""Worker processes of a command: a few at a time, each heard until its end, none left behind."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.kit.process.poll import readable
from stoker.kit.workers.activity import Bounds
from stoker.kit.workers.parent import Worker, WorkerExit
from stoker.store.errors import StokerError

GRACE_S = 3.0  # from TERM to KILL; what a command starts only reads, or writes a temporary
LOOK_S = 0.5
EXIT_UNAVAILABLE, EXIT_TERMINATED = 69, 143

Hear = Callable[[Worker, Mapping[str, Any]], None]


class WorkerFailed(StokerError):
    """A worker ended without a result; the exit code is its own where it gave one."""

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__(f"{what}: {ended.reason()}")
        code = ended.code or 0
        self.exit_code = code if code in range(64, 79) else EXIT_UNAVAILABLE


@dataclass(frozen=True)
class Job:
    """One worker's work: `note` is the caller's; `hear` gets what the worker says.

    quiet_s bounds the time between two messages, most_rss_bytes its memory; keep_open leaves its input open.
    """

    module: str
    task: Mapping[str, Any]
    quiet_s: float | None
    note: Any = None
    hear: Hear = lambda worker, message: None
    most_rss_bytes: int | None = None
    keep_open: bool = False


def work_off(jobs: Iterator[Job], at_once: int, *, warm: bool = False) -> Iterator[tuple[Job, WorkerExit]]:
    """Do the jobs, so many at once; gives each with its end.

    warm: all are of one module, which takes many tasks; a worker that has done one gets the next. Call it
    from the main thread; a worker that still runs when the iterator is closed is stopped.
    """
    running: list[tuple[Worker, Job]] = []
    idle: list[Worker] = []
    try:
        while True:
            while len(running) < at_once and (job := next(jobs, None)) is not None:
                running.append((_begin(job, idle, warm=warm), job))
            if not running:
                return
            readable(*(worker.fileno() for worker, _ in running), timeout_s=LOOK_S)
            for entry in list(running):
                worker, job = entry
                gone = worker.poll()
                said = worker.messages()
                ended = worker.take_done() or gone
                if ended is not None:
                    said += worker.messages()  # those that came with its end: not the next job's
                for message in said:
                    job.hear(worker, message)
                if ended is not None:
                    running.remove(entry)
                    if gone is None:
                        idle.append(worker)
                    yield job, ended
    finally:
        still_here = [*idle, *(worker for worker, _ in running)]
        for worker in still_here:
            worker.ask_to_stop(GRACE_S)
        for worker in still_here:
            worker.stop(GRACE_S)


def _begin(job: Job, idle: list[Worker], *, warm: bool) -> Worker:
    """Give the job to an idle worker that is still there, or start one."""
    bounds = Bounds(silent_s=job.quiet_s, most_rss_bytes=job.most_rss_bytes)
    while idle:
        worker = idle.pop()
        if worker.poll() is None:
            worker.give(job.task, bounds=bounds)
            return worker
    name, keep_open = job.module.rpartition(".")[2], job.keep_open or warm
    return Worker.start(job.module, job.task, name=name, keep_open=keep_open, bounds=bounds)


@contextlib.contextmanager
def tidy_on_term() -> Iterator[None]:
    """Within the block SIGTERM unwinds, as Ctrl-C does, so that what was begun is taken away."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def work(job: Job, what: str) -> dict[str, Any]:
    """Do one job to its result. Raises WorkerFailed, which begins with `what`, where there is none."""
    for _, ended in work_off(iter([job]), 1):
        if ended.result is None:
            raise WorkerFailed(what, ended)
        return ended.result
    raise AssertionError("a worker that was started ends")
