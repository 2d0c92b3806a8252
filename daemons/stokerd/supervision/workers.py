"""The supervisor's workers, at most one a slot. Those on warm have a pool of their own: one that hangs in a
mount that does not answer holds up nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import ABANDONED, WorkerPool
from stoker.store.errors import Transient
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.actions import Job, MirrorJob

KILLED_WAIT_S = 1.0  # for a killed worker of an earlier supervisor; a longer wait would hold up the loop


class Workers:
    """Starts a worker for a job, and reports how it ended."""

    def __init__(self, context: DaemonContext) -> None:
        self._waiter = context.waiter
        self._warm_name = f"{context.layout.state}:mirror"
        self._here = WorkerPool[None](f"{context.layout.state}:{TRAIN_SUPERVISOR}", context.waiter)
        self._warm = WorkerPool[None](self._warm_name, context.waiter)
        self._is_warm_clear = False
        self.jobs: dict[str, Job] = {}

    @property
    def pids(self) -> set[int]:
        return self._here.pids | self._warm.pids

    def end_leftovers(self) -> None:
        """Kill the workers of an earlier supervisor and wait for them; Transient where one does not end."""
        self._here.end_leftovers()

    def is_clear(self, job: Job) -> bool:
        """Whether no worker of an earlier supervisor is at such work; a killed one may hang in the kernel."""
        if isinstance(job, MirrorJob) and not self._is_warm_clear:
            try:
                self._warm.end_leftovers(KILLED_WAIT_S)
            except Transient:
                return False
            self._is_warm_clear = True
        return True

    def start(self, job: Job, module: str, task: Mapping[str, Any], *, silent_s: float) -> None:
        """Start a job's worker; it is killed once it has said nothing for `silent_s` seconds."""
        self.jobs[job.slot] = job
        self._pool(job).start(Activity(job.kind, module, silent_s), job.slot, task, None)

    def ended(self) -> list[tuple[Job, WorkerExit]]:
        """The jobs that have ended; a worker that the kernel does not let go counts as ended."""
        heard = [*self._here.hear(), *self._warm.hear()]
        ended = [(self.jobs.pop(worker.subject), end) for worker, _, end in heard if end is not None]
        if ABANDONED in self._warm.busy.values():
            ended.append((self.jobs.pop(MirrorJob.slot), WorkerExit("silent")))
            self._waiter.remove_fd(self._warm[MirrorJob.slot].worker.fileno())
            self._warm, self._is_warm_clear = WorkerPool[None](self._warm_name, self._waiter), False
        return ended

    def stop(self) -> None:
        """Stop the workers that are not on warm; what they would have found out is asked again."""
        self._here.stop()
        self.jobs = {slot: job for slot, job in self.jobs.items() if slot == MirrorJob.slot}

    def stop_mirror(self) -> None:
        """Stop the worker on warm: a copy that it began is continued later."""
        if self.jobs.pop(MirrorJob.slot, None) is not None:
            self._warm.stop()
            self._is_warm_clear = False

    def _pool(self, job: Job) -> WorkerPool[None]:
        return self._warm if isinstance(job, MirrorJob) else self._here
