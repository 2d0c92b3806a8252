"""The supervisor's workers, at most one a slot. Those on warm have a pool of their own: one that hangs in a
mount that does not answer holds up nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.kit.workers import activity
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import ABANDONED, WorkerPool
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.actions import Job, MirrorJob
from stokerd.supervision import mirror, proofs
from stokerd.supervision.proofs import Result
from stokerd.supervision.run import Run

KILLED_WAIT_S = 1.0  # for a killed worker of an earlier supervisor; a longer wait would hold up the loop
MIRROR = MirrorJob.slot


@dataclass(frozen=True)
class Activity:
    """All there is to know of the jobs of a slot.

    `ended` takes in the worker's result, None where there is none, for the reason given.
    """

    module: str
    task: Callable[[Run, Any], dict[str, Any]]
    ended: Callable[[Run, Any, Result | None, str], None]


ACTIVITIES = {
    "checkpoint": Activity(
        "stoker.checkpoints.proof_worker", proofs.checkpoint_task, proofs.checkpoint_proved
    ),
    "sets": Activity("stoker.shards.format.proof_worker", proofs.sets_task, proofs.sets_proved),
    "heldout": Activity("stoker.plan.heldout_worker", proofs.heldout_task, proofs.heldout_copied),
    MIRROR: Activity("stoker.checkpoints.mirror.mirror_worker", mirror.mirror_task, mirror.mirror_ended),
}


class Workers:
    """Starts a worker for a job, and reports how it ended."""

    def __init__(self, run: Run) -> None:
        self._run, self._waiter = run, run.context.waiter
        state = run.context.layout.state
        self._warm_name = f"{state}:mirror"
        self._here = WorkerPool[Job](f"{state}:{TRAIN_SUPERVISOR}", self._waiter)
        self._warm = WorkerPool[Job](self._warm_name, self._waiter)

    @property
    def jobs(self) -> dict[str, Job]:
        """What is under way, by slot."""
        return {one.subject: one.facts for one in (*self._here.jobs, *self._warm.jobs)}

    @property
    def pids(self) -> set[int]:
        return self._here.pids | self._warm.pids

    def end_leftovers(self) -> None:
        """Kill the workers of an earlier supervisor and wait for them; Transient where one does not end."""
        self._here.end_leftovers()

    def start(self, job: Job) -> None:
        """Start a job's worker; Transient where an earlier one on warm was killed and has not ended yet."""
        mine, pool = ACTIVITIES[job.slot], self._here
        if job.slot == MIRROR:
            self._warm.end_leftovers(KILLED_WAIT_S)
            pool = self._warm
        kind = activity.Activity(job.kind, mine.module, job.silent_s)
        pool.start(kind, job.slot, mine.task(self._run, job), job)

    def ended(self) -> list[tuple[Job, WorkerExit]]:
        """The jobs that have ended; a worker that the kernel does not let go counts as ended."""
        heard = (*self._here.hear(), *self._warm.hear())
        ended = [(worker.facts, end) for worker, _, end in heard if end is not None]
        if ABANDONED in self._warm.busy.values():
            stuck = self._warm[MIRROR]
            ended.append((stuck.facts, WorkerExit("silent")))
            self._waiter.remove_fd(stuck.worker.fileno())
            self._warm = WorkerPool[Job](self._warm_name, self._waiter)
        return ended

    def stop(self) -> None:
        """Stop the workers that are not on warm; what they would have found out is asked again."""
        self._here.stop()

    def stop_mirror(self) -> None:
        """Stop the worker on warm: a copy that it began is continued later."""
        self._warm.stop()
