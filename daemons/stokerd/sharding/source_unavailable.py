"""The source folder as staging finds it: while it is away nothing is staged, and nobody is blamed for it."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from stoker.kit.backoff import Backoff
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.store.errors import UnavailableError
from stokerd.sharding.disks import TRIES_ONCE

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0


class SourceAway:
    """Hears how staging ends. An unmounted folder and one that does not answer are the same to it: each file
    would fail in turn, and a worker each would hang in the kernel, so staging as a whole waits."""

    def __init__(self, context: DaemonContext, crew: WorkerPool[Any]) -> None:
        self._context, self._crew = context, crew
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S, random.Random())  # noqa: S311 - jitter
        self._failures = 0
        self._until = 0.0
        self._why = ""
        self._gauge = context.metrics.gauge("staging_paused", "1 while the source folder does not answer.")

    def take(self, job: Job[Any], ended: WorkerExit) -> None:
        """A worker ended; with --once gives up, UnavailableError, after some tries in vain."""
        if job.kind != "stage":
            return
        result = ended.result or {}
        if result.get("status") == "unavailable":
            self._failed(str(result["reason"]))
        elif ended.kind == "timed_out":
            self._failed(f"bringing {job.subject} to hot: {ended.reason()}; does its file system answer?")
        elif ended.kind == "finished":
            self._answered()
        if resumed := result.get("resumed"):
            self._context.events.record("stage_resumed", path=job.subject, bytes=resumed)

    @property
    def until(self) -> float:
        """When staging may go on, monotonic seconds; inf while a worker hangs in the kernel."""
        return math.inf if self._stuck else self._until

    @property
    def trouble(self) -> str:
        """Why nothing is staged, in words; empty when the source answers."""
        self._gauge.set(bool(self._why or self._stuck))
        if self._stuck:
            return "staging waits for the source or hot: a worker hangs in the kernel"
        return f"staging waits: {self._why}" if self._why else ""

    @property
    def _stuck(self) -> bool:
        return any(job.abandoned and job.kind == "stage" for job in self._crew.jobs)

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._until = time.monotonic() + self._backoff.next()
        if not self._why:
            self._context.events.record("staging_paused", level="warning", reason=reason)
        self._why = reason
        if self._context.once and self._failures >= TRIES_ONCE:
            raise UnavailableError(reason)

    def _answered(self) -> None:
        if self._why:
            self._context.events.record("staging_resumed")
        self._failures, self._until, self._why = 0, 0.0, ""
        self._backoff.reset()
