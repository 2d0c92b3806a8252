"""Runs worker processes for a command and waits for their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.kit.loop import Waiter
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, WorkerPool
from stoker.store.errors import StokerError, UnavailableError

LOOK_S = 0.5
EXIT_UNAVAILABLE = 69


class WorkerFailed(StokerError):
    """A worker ended without a result; its exit code is used if it is in the range of sysexits.h."""

    def __init__(self, what: str, ended: WorkerExit) -> None:
        super().__init__(f"{what}: {ended.reason()}")
        code = ended.code or 0
        self.exit_code = code if code in range(64, 79) else EXIT_UNAVAILABLE


class Workers:
    """Runs one task at a time; its workers end with the `with` block."""

    def __enter__(self) -> Workers:
        self._waiter = Waiter()
        self._pool = WorkerPool[None]("command", self._waiter)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()
        self._waiter.close()

    def run(
        self,
        activity: Activity,
        task: Mapping[str, Any],
        what: str,
        hear: Callable[[Mapping[str, Any]], bool | None] = lambda message: None,
    ) -> dict[str, Any]:
        """Returns the result of a task, or the message for which `hear` returns True.

        Raises WorkerFailed, which begins with `what`, where the worker ends without either.
        """
        self._pool.start(activity, what, task, None)
        while True:
            for _, messages, ended in self._pool.hear():
                for message in messages:
                    if hear(message):
                        return dict(message)
                if ended is not None and ended.result is None:
                    raise WorkerFailed(what, ended)
                if ended is not None and ended.result is not None:
                    return ended.result
            if self._pool[what].abandoned:
                raise UnavailableError(f"{what}: a file system or a driver does not answer; check dmesg")
            self._pool.wait(LOOK_S)
