"""Workers between two tasks: their imports are done, and the next task of their module need not wait."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass

from stoker.kit.loop import Waiter
from stoker.kit.workers.parent import Worker, WorkerExit

IDLE_S = 60.0
LEAVING_S = 10.0  # from the end of its input to a TERM


@dataclass
class _Idle:
    module: str
    worker: Worker
    descriptor: int
    until: float  # monotonic seconds at which it is told to go, or asked to once it was told
    leaving: bool = False

    def serves(self, module: str) -> bool:
        """Whether it can take a task of that module."""
        return self.module == module and not self.leaving and not self.worker.ending


class IdleWorkers:
    """Keeps idle workers, the longest idle first out of the door."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._kept: list[_Idle] = []

    def put(self, module: str, worker: Worker, *, keep: bool = True) -> None:
        """Take a worker without a task; one that is not to be kept is sent away."""
        idle = _Idle(module, worker, worker.fileno(), time.monotonic() + IDLE_S)
        self._kept.append(idle)
        self._waiter.add_fd(idle.descriptor, (IdleWorkers, worker.pid))
        if not keep:
            self._send_away(idle)

    def take(self, module: str) -> Worker | None:
        """An idle worker of the module: the one that worked last, so that those not needed grow old."""
        for idle in reversed(self._kept):
            if idle.serves(module) and idle.worker.poll() is None:
                self._forget(idle)
                return idle.worker
        return None

    @property
    def pids(self) -> set[int]:
        """The processes kept here, those about to go included."""
        return {idle.worker.pid for idle in self._kept}

    def owns(self, tag: Hashable) -> bool:
        """Whether an event of the waiter is about an idle worker."""
        return isinstance(tag, tuple) and tag[:1] == (IdleWorkers,)

    def tend(self, now: float) -> list[WorkerExit]:
        """Send away who was idle for long, forget who is gone; returns ends by a signal nobody here sent."""
        died = []
        for idle in list(self._kept):
            ended = idle.worker.poll(now)
            idle.worker.messages()
            if ended is not None:
                self._forget(idle)
                if ended.kind == "killed" and not idle.leaving:
                    died.append(ended)
            elif now >= idle.until and idle.leaving:
                idle.worker.ask_to_stop(0)
            elif now >= idle.until:
                self._send_away(idle)
        return died

    def empty(self) -> list[Worker]:
        """Give all of them out, to be stopped."""
        workers = [idle.worker for idle in self._kept]
        for idle in list(self._kept):
            self._forget(idle)
        return workers

    def _send_away(self, idle: _Idle) -> None:
        idle.worker.close_input()
        idle.leaving, idle.until = True, time.monotonic() + LEAVING_S

    def _forget(self, idle: _Idle) -> None:
        self._waiter.remove_fd(idle.descriptor)
        self._kept.remove(idle)
