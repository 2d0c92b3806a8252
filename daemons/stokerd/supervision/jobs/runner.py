"""Runs the jobs of the train supervisor: one worker at a time in each slot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import ABANDONED, WorkerPool
from stoker.store.errors import Transient
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.supervise.actions import Job
from stoker.supervise.state import Phase
from stokerd.supervision.jobs import ACTIVITIES
from stokerd.supervision.jobs.base import Pool, RunActivity
from stokerd.supervision.run import Run

KILLED_WAIT_S = 1.0  # for a killed worker that may hang in the kernel; the loop waits meanwhile
NAMES = {"local": TRAIN_SUPERVISOR, "warm": "mirror"}  # of the pools, as leftover workers know them


class Jobs:
    """Starts what is due, hears workers, and ends jobs with their phase; `run.jobs` are the running ones."""

    def __init__(self, run: Run, activities: Mapping[str, RunActivity] = ACTIVITIES) -> None:
        self.run, self.activities = run, activities
        self._pools = {each.pool: self._pool(each.pool) for each in activities.values()}
        self._due_at: dict[str, float] = {}
        self._slices = {each for activity in activities.values() for each in activity.slices}

    def _pool(self, pool: Pool) -> WorkerPool[Job]:
        context = self.run.context
        return WorkerPool(f"{context.layout.state}:{NAMES.get(pool, pool)}", context.waiter)

    @property
    def pids(self) -> set[int]:
        return set().union(*(pool.pids for pool in self._pools.values()))

    def end_leftovers(self) -> None:
        """Kills and awaits local workers of an earlier supervisor; raises Transient where one survives."""
        self._pools["local"].end_leftovers()

    def hear(self) -> None:
        """Takes in the messages and ends of workers."""
        for pool in list(self._pools):
            for worker, messages, end in self._pools[pool].hear():
                activity = self.activities[worker.facts.kind]
                for message in messages:
                    activity.on_message(self.run, worker.facts, message)
                if end is not None:
                    self._ended(activity, worker.facts, end)
            if pool != "local" and ABANDONED in self._pools[pool].busy.values():
                self._abandon(pool)

    def _abandon(self, pool: Pool) -> None:
        """Counts a killed worker that hangs in the kernel as ended; none is started beside it."""
        (stuck,) = self._pools[pool].jobs
        self.run.context.waiter.remove_fd(stuck.worker.fileno())
        self._pools[pool] = self._pool(pool)
        self._ended(self.activities[stuck.facts.kind], stuck.facts, WorkerExit("silent"))

    def _ended(self, activity: RunActivity, job: Job, end: WorkerExit) -> None:
        run = self.run
        run.jobs.pop(activity.slot, None)
        if run.state.phase is not Phase.TRAINING:  # while training, `keep_at` alone sets the interval
            run.change(keep_at=0.0)
        self._due_at.clear()
        activity.end(run, job, end)

    def start_due(self) -> None:
        """Starts what is due where its slot is free, and sends running workers what they have to know."""
        now, phase = time.monotonic(), self.run.state.phase
        for activity in self.activities.values():
            job = self.run.jobs.get(activity.slot)
            if job is not None and job.kind == activity.kind:
                for message in activity.send(self.run):
                    self._pools[activity.pool][activity.slot].worker.send(message)
            if phase not in activity.due_in or now < self._due_at.get(activity.kind, now):
                continue
            self._due_at[activity.kind] = now + activity.every_s  # first: `due` may fail on a full disk
            for subject in activity.due(self.run):
                if self.is_free(activity.kind):
                    self.start(Job(activity.kind, subject))

    def is_free(self, kind: str) -> bool:
        """Returns whether no job runs in the slot of a kind."""
        return self.activities[kind].slot not in self.run.jobs

    def awaited(self) -> Job | None:
        """Returns the first job, running or due, that the phase waits for."""
        phase = self.run.state.phase
        for activity in self.activities.values():
            if phase in activity.awaited_in:
                job = self.run.jobs.get(activity.slot)
                if job is not None and job.kind == activity.kind:
                    return job
                for subject in activity.due(self.run):
                    return Job(activity.kind, subject)
        return None

    def start(self, job: Job) -> None:
        """Starts a job's worker, in place of another job of its slot; no start is an end of the job."""
        activity = self.activities[job.kind]
        pool, slot = self._pools[activity.pool], activity.slot
        if slot in self.run.jobs:
            self._stop(slot)
        try:
            if activity.pool != "local":
                pool.end_leftovers(KILLED_WAIT_S)
            pool.start(activity, slot, activity.task(self.run, job), job)
            self.run.jobs[slot] = job
        except Transient as problem:
            error = {"message": str(problem), "exit_code": problem.exit_code}
            activity.end(self.run, job, WorkerExit("failed", error=error))

    def entered(self, phase: Phase) -> None:
        """Ends the jobs that end in a phase, and resets the state that is reset there."""
        for slot, job in list(self.run.jobs.items()):
            if phase in self.activities[job.kind].ends_in:
                self._stop(slot)
        for each in self._slices:
            if phase in each.resets:
                self.run.slices.pop(each.name, None)

    def stop(self) -> None:
        """Ends every worker; what it did is begun again where it is needed."""
        for slot in list(self.run.jobs):
            self._stop(slot)

    def _stop(self, slot: str) -> None:
        activity = self.activities[self.run.jobs.pop(slot).kind]
        self._pools[activity.pool].stop(slot)
        activity.on_stop(self.run)

    # Reload

    def handed_over(self) -> dict[str, Any]:
        """Returns the state by which this process's next image goes on."""
        return {
            each.name: TypeAdapter[Any](each.kind).dump_python(each.of(self.run), mode="json")
            for each in self._slices
            if each.kind is not None
        }

    def adopt(self, body: Mapping[str, Any]) -> None:
        """Goes on from what this process's image before has `handed_over`."""
        for each in self._slices:
            if each.kind is not None and each.name in body and self.run.state.phase not in each.resets:
                with contextlib.suppress(ValueError):  # of another version: it begins anew, as at a start
                    self.run.slices[each.name] = TypeAdapter[Any](each.kind).validate_python(body[each.name])
