"""The workers a data daemon has at work: at most one for each subject, all stopped when the daemon stops."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.kit.backoff import Backoff
from stoker.kit.process import processes_with_environment, signal_process
from stoker.kit.wait import Waiter
from stoker.kit.worker import Worker, WorkerExit
from stoker.observe.memory import sample_tree
from stoker.store.errors import Transient

CREW_VARIABLE = "STOKER_CREW"
STOP_GRACE_S = 5.0
_LEFTOVERS_END_S = 20.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 60.0


@dataclass
class Job:
    """One worker at work on one subject (a source's path, or a word of the daemon's own)."""

    activity: str
    subject: str
    worker: Worker
    descriptor: int
    note: dict[str, Any] = field(default_factory=dict)


class Crew:
    """Starts workers, hears them, reaps them. `name` marks them in their environment, to be found again."""

    def __init__(self, name: str, waiter: Waiter) -> None:
        self._name = name
        self._waiter = waiter
        self._jobs: dict[str, Job] = {}

    def start(
        self,
        activity: str,
        subject: str,
        module: str,
        task: Mapping[str, Any],
        *,
        quiet_s: float,
        keep_open: bool = False,
    ) -> Job:
        """Start a worker; it is killed once it has said nothing for quiet_s seconds."""
        assert subject not in self._jobs, f"{subject} is being worked on"
        worker = Worker.start(
            module,
            task,
            name=f"{activity} {subject}",
            deadline_s=None,
            quiet_deadline_s=quiet_s,
            environ={CREW_VARIABLE: self._name},
            keep_open=keep_open,
        )
        job = self._jobs[subject] = Job(activity, subject, worker, worker.fileno())
        self._waiter.add_fd(job.descriptor, subject)
        return job

    def __getitem__(self, subject: str) -> Job:
        return self._jobs[subject]

    def __contains__(self, subject: str) -> bool:
        return subject in self._jobs

    @property
    def busy(self) -> dict[str, str]:
        """The activity by subject of all that is going on."""
        return {subject: job.activity for subject, job in self._jobs.items()}

    def rss_bytes(self) -> int:
        """Resident bytes of all workers and what they started."""
        return sum(sample_tree(job.worker.pid) for job in self._jobs.values())

    def hear(self) -> Iterator[tuple[Job, list[dict[str, Any]], WorkerExit | None]]:
        """What each worker said since the last call, and its exit if it ended; then it is forgotten."""
        for job in list(self._jobs.values()):
            # In this order: poll() reads too, and what it read nobody would be woken up for.
            ended = job.worker.poll(time.monotonic())
            messages = job.worker.messages()
            if ended is not None:
                self._waiter.remove_fd(job.descriptor)  # closed by now, so it is known by its number
                del self._jobs[job.subject]
            if messages or ended is not None:
                yield job, messages, ended

    def stop(self) -> None:
        """Stop every worker and wait for its end."""
        for job in self._jobs.values():
            job.worker.ask_to_stop(STOP_GRACE_S)
        for job in list(self._jobs.values()):
            job.worker.stop(STOP_GRACE_S)
            del self._jobs[job.subject]

    def end_leftovers(self) -> int:
        """Kill what an earlier daemon of this name left at work, and wait until it is gone; returns how many.

        A worker ends with its daemon, but not at the same instant. Raises Transient when one does not go
        (it hangs in the kernel): two workers on one file would spoil it.
        """
        found = 0
        deadline = time.monotonic() + _LEFTOVERS_END_S
        while left := processes_with_environment(CREW_VARIABLE, self._name):
            found = max(found, len(left))
            for process in left:
                with contextlib.suppress(PermissionError):
                    signal_process(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in left)
                raise Transient(
                    f"workers of an earlier daemon do not end (pid {pids}): a file system does not answer; "
                    "look at the mount, then start again"
                )
            time.sleep(0.02)
        return found


class Patience:
    """When each subject may be tried again after failures: exponential, with jitter, forgotten on success."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._backoffs: dict[str, Backoff] = {}
        self._failures: dict[str, int] = {}
        self.not_before: dict[str, float] = {}

    def failed(self, subject: str) -> float:
        """Count a failure; returns the seconds until the next try."""
        backoff = self._backoffs.setdefault(subject, Backoff(_FIRST_RETRY_S, _LAST_RETRY_S, self._rng))
        wait = backoff.next()
        self._failures[subject] = self._failures.get(subject, 0) + 1
        self.not_before[subject] = time.monotonic() + wait
        return wait

    def allows(self, subject: str) -> bool:
        """Whether the subject may be tried now."""
        return time.monotonic() >= self.not_before.get(subject, 0.0)

    def failures(self, subject: str) -> int:
        """How often in a row the subject failed."""
        return self._failures.get(subject, 0)

    def succeeded(self, subject: str) -> None:
        """Forget the subject's failures."""
        for each in (self._backoffs, self._failures, self.not_before):
            each.pop(subject, None)
