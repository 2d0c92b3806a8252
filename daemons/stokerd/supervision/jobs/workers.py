"""The supervisor's workers, at most one per slot.

Workers on warm have a separate pool: a worker that hangs in a dead mount must not block the other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import ABANDONED, Activity, WorkerPool
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.actions import Job, MirrorJob

KILLED_WAIT_S = 1.0  # for a killed worker of an earlier supervisor; the loop waits meanwhile


class Workers:
    def __init__(self, context: DaemonContext) -> None:
        self._waiter, state = context.waiter, context.layout.state
        self._warm_name = f"{state}:mirror"
        self._here = WorkerPool[Job](f"{state}:{TRAIN_SUPERVISOR}", self._waiter)
        self._warm = WorkerPool[Job](self._warm_name, self._waiter)

    @property
    def jobs(self) -> dict[str, Job]:
        """The running jobs, by slot."""
        return {one.subject: one.facts for one in (*self._here.jobs, *self._warm.jobs)}

    @property
    def pids(self) -> set[int]:
        return self._here.pids | self._warm.pids

    def end_leftovers(self) -> None:
        """Kills and awaits the workers of an earlier supervisor; raises Transient where one survives."""
        self._here.end_leftovers()

    def start(self, job: Job, task: Mapping[str, Any]) -> None:
        """Starts a job's worker; raises Transient while a killed worker on warm has not ended yet."""
        pool = self._here
        if isinstance(job, MirrorJob):
            self._warm.end_leftovers(KILLED_WAIT_S)
            pool = self._warm
        pool.start(Activity(job.kind, job.module, job.silent_s), job.slot, task, job)

    def ended(self) -> list[tuple[Job, WorkerExit]]:
        """Returns the jobs that have ended; a killed worker that hangs in the kernel counts as ended."""
        heard = (*self._here.hear(), *self._warm.hear())
        ended = [(worker.facts, end) for worker, _, end in heard if end is not None]
        if ABANDONED in self._warm.busy.values():
            stuck = self._warm[MirrorJob.slot]
            ended.append((stuck.facts, WorkerExit("silent")))
            self._waiter.remove_fd(stuck.worker.fileno())
            self._warm = WorkerPool[Job](self._warm_name, self._waiter)
        return ended

    def stop(self) -> None:
        """Stops the workers that are not on warm; `decide` starts their jobs again where they are needed."""
        self._here.stop()

    def stop_mirror(self) -> None:
        """Stops the worker on warm; a later worker continues its copy."""
        self._warm.stop()
