"""The pool of a daemon's workers: at most one per subject, all stopped when the daemon stops."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stoker.kit.loop import Event, Waiter
from stoker.kit.process import processes_with_environment, sample_process, signal_process
from stoker.kit.workers.parent import KILL_WAIT_S, Bounds, Worker, WorkerExit
from stoker.store.errors import Transient, UnknownFormat

POOL_VARIABLE = "STOKER_POOL"  # names the pool, so that its workers are found after their daemon died
STOP_GRACE_S = 5.0
FROZEN_S = 30.0  # between two hearings: the daemon was frozen, its workers maybe with it
LOOK_S = 1.0  # between two checks of the workers' bounds
IDLE_S = 60.0  # how long an idle worker is kept for the next task of its module
ABANDONED = "abandoned"  # the activity shown for a subject whose worker the kernel does not let go
LEFTOVERS_END_S = 20.0


F = TypeVar("F")


@dataclass(frozen=True)
class Activity:
    """The start and the bounds of the workers of a kind of job.

    `module` runs as `python -m module`. `is_memory_bound`: the pool's `most_rss_bytes` holds for the worker.
    `is_reusable`: the module takes task after task, and an idle worker gets the next task. `keep_open` leaves
    the worker's input open for further messages; `shares_stderr` passes its standard error to the daemon's.
    """

    kind: str
    module: str
    silent_s: float = 300.0
    stall_s: float | None = None
    is_memory_bound: bool = False
    is_reusable: bool = False
    keep_open: bool = False
    shares_stderr: bool = False


@dataclass
class Job(Generic[F]):
    """A worker at work on a subject (a source's path, or a daemon's own name for the work).

    `facts` is the daemon's own knowledge of the job.
    """

    activity: Activity
    subject: str
    worker: Worker
    facts: F
    abandoned: bool = False

    @property
    def kind(self) -> str:
        return self.activity.kind

    @property
    def name(self) -> str:
        return f"{self.kind} {self.subject}"


@dataclass
class _Idle:
    """A worker between two tasks, its imports done; ended at monotonic time `until`."""

    module: str
    worker: Worker
    until: float


def raise_unknown_format(ended: WorkerExit) -> None:
    """Raises UnknownFormat again if a worker ended with it.

    A daemon that tried again, or treated the file as damaged, would be wrong each time.
    """
    error = ended.error or {}
    if error.get("type") == UnknownFormat.__name__:
        raise UnknownFormat(str(error["message"]))


class WorkerPool(Generic[F]):
    """Starts workers, collects their messages and reaps them; `name` marks them in their environment.

    By that mark a later daemon finds leftover workers. A worker that stays in the kernel after its SIGKILL is
    abandoned: its job remains, as the kind `abandoned`, until the worker ends, so that its subject is not
    touched. `record` takes an event's word and its fields. A reusable worker larger than `recycle_rss_bytes`
    is not reused.
    """

    def __init__(
        self,
        name: str,
        waiter: Waiter,
        *,
        record: Callable[..., None] = lambda event, **fields: None,
        most_rss_bytes: int | None = None,
        recycle_rss_bytes: int | None = None,
    ) -> None:
        self._name = name
        self._waiter = waiter
        self._record = record
        self._most_rss_bytes, self._recycle_rss_bytes = most_rss_bytes, recycle_rss_bytes
        self._jobs: dict[str, Job[F]] = {}
        self._idle: list[_Idle] = []
        self._heard_at = time.monotonic()

    def start(self, activity: Activity, subject: str, task: Mapping[str, Any], facts: F) -> Job[F]:
        """Gives a task to an idle worker if the activity is reusable, else to a new worker.

        A task may bound its own worker: `memory_bytes`, `timeout_s`.
        """
        assert subject not in self._jobs, f"{subject} is being worked on"
        most_rss_bytes = self._most_rss_bytes if activity.is_memory_bound else None
        most_rss_bytes = task.get("memory_bytes", most_rss_bytes)
        bounds = Bounds(activity.silent_s, activity.stall_s, most_rss_bytes, task.get("timeout_s"))
        worker = self._take_idle(activity.module) if activity.is_reusable else None
        if worker is None:
            worker = Worker(
                activity.module,
                task,
                name=f"{activity.kind} {subject}",
                bounds=bounds,
                environ={POOL_VARIABLE: self._name},
                keep_open=activity.keep_open or activity.is_reusable,
                shares_stderr=activity.shares_stderr,
            )
        else:
            worker.give(task, bounds=bounds)
        job = self._jobs[subject] = Job(activity, subject, worker, facts)
        self._waiter.add_fd(worker.fileno(), subject)
        return job

    def __getitem__(self, subject: str) -> Job[F]:
        return self._jobs[subject]

    def __contains__(self, subject: str) -> bool:
        return subject in self._jobs

    @property
    def jobs(self) -> tuple[Job[F], ...]:
        return tuple(self._jobs.values())

    @property
    def busy(self) -> dict[str, str]:
        """Returns the activity of each subject at work."""
        return {subject: ABANDONED if job.abandoned else job.kind for subject, job in self._jobs.items()}

    @property
    def pids(self) -> set[int]:
        """Returns the pids of the pool's workers, including idle workers."""
        return {worker.pid for worker in self._workers()}

    def running(self, module: str) -> set[int]:
        """Returns the pids of the workers that run a module, including idle workers."""
        at_work = {job.worker.pid for job in self._jobs.values() if job.activity.module == module}
        return at_work | {idle.worker.pid for idle in self._idle if idle.module == module}

    def _workers(self) -> list[Worker]:
        return [job.worker for job in self._jobs.values()] + [idle.worker for idle in self._idle]

    def wait(self, timeout_s: float) -> list[Event]:
        """Waits like the waiter, and meanwhile enforces the workers' bounds."""
        give_up = time.monotonic() + min(timeout_s, self._waiter.longest_s)
        while True:
            left_s = max(0.0, give_up - time.monotonic())
            events = self._waiter.wait(min(left_s, LOOK_S) if self._jobs else left_s)
            if events or left_s <= LOOK_S or any(job.worker.has_news() for job in self._jobs.values()):
                return events

    def _take_idle(self, module: str) -> Worker | None:
        """Returns the idle worker of the module that worked last, so that surplus workers reach their end."""
        for idle in reversed(self._idle):
            if idle.module == module and not idle.worker.ending and idle.worker.poll() is None:
                self._idle.remove(idle)
                return idle.worker
        return None

    def _tend_idle(self, now: float) -> None:
        for idle in list(self._idle):
            if idle.worker.poll(now) is not None:
                self._idle.remove(idle)
            elif now >= idle.until:
                idle.worker.ask_to_stop(0)

    def hear(self) -> Iterator[tuple[Job[F], list[dict[str, Any]], WorkerExit | None]]:
        """Yields each worker's messages since the last call, and its exit if it ended; then forgets the job.

        A finished task of a reusable worker counts as an end.
        """
        now = time.monotonic()
        is_thawed, self._heard_at = now - self._heard_at > FROZEN_S, now
        for job in list(self._jobs.values()):
            if is_thawed:
                job.worker.forgive_silence()
            messages, ended = job.worker.hear(now)
            if ended is not None:
                self._waiter.remove_fd(job.worker.fileno())
                del self._jobs[job.subject]
                self._put_back(job, ended)
                raise_unknown_format(ended)
            elif not job.abandoned:
                self._abandon_if_stuck(job, now)
            if messages or ended is not None:
                yield job, messages, ended
        self._tend_idle(now)

    def _put_back(self, job: Job[F], ended: WorkerExit) -> None:
        if job.abandoned:
            self._record("worker_came_back", activity=job.kind, path=job.subject, pid=job.worker.pid)
        if job.worker.poll() is None:
            most = self._recycle_rss_bytes
            is_big = most is not None and sample_process(job.worker.pid).rss_bytes > most
            self._idle.append(_Idle(job.activity.module, job.worker, time.monotonic() + IDLE_S))
            if is_big or (ended.result or {}).get("status") == "recycled":
                job.worker.ask_to_stop(0)

    def _abandon_if_stuck(self, job: Job[F], now: float) -> None:
        if job.worker.stuck_s(now) > KILL_WAIT_S:
            job.abandoned = True
            self._record(
                "worker_stuck",
                activity=job.kind,
                path=job.subject,
                pid=job.worker.pid,
                reason="it was killed and the kernel does not let it go: a file system does not answer; "
                "what it worked on stays reserved and continues by itself once the mount answers",
            )

    def stop(self, subject: str | None = None) -> None:
        """Stops one subject's worker, or all, and waits for the end; gives up on those the kernel keeps."""
        jobs = [job for job in self.jobs if subject in (None, job.subject)]
        workers = self._workers() if subject is None else [job.worker for job in jobs]
        for worker in workers:
            self._waiter.remove_fd(worker.fileno())
            worker.ask_to_stop(STOP_GRACE_S)
        until = time.monotonic() + STOP_GRACE_S + KILL_WAIT_S
        for worker in workers:
            worker.wait(until)
        for job in jobs:
            del self._jobs[job.subject]
        self._idle = [idle for idle in self._idle if subject is not None]

    def end_leftovers(self, patience_s: float = LEFTOVERS_END_S) -> None:
        """Kills the workers of an earlier daemon of this name, and waits until they are gone.

        A worker ends with its daemon, but not at the same instant. Raises Transient when a worker does not
        end (it hangs in the kernel): two workers on one file would spoil it.
        """
        deadline = time.monotonic() + patience_s
        while left := [
            each
            for each in processes_with_environment(POOL_VARIABLE, self._name)
            if each.pid not in self.pids
        ]:
            for process in left:
                with contextlib.suppress(PermissionError):
                    signal_process(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in left)
                raise Transient(
                    f"workers of an earlier daemon do not end (pid {pids}): a file system does not answer; "
                    "check the mount, then start again"
                )
            time.sleep(0.02)
