"""The parts of a daemon's loop that the daemons share: its cycles, its waits, the requests to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.kit.daemon import DaemonContext
from stoker.kit.events import Events
from stoker.kit.reload import Reload
from stoker.kit.workers.parent import WorkerNotStarted
from stoker.kit.workers.pool import WorkerPool
from stoker.store.errors import FULL, StorageError, Transient
from stoker.store.files import unlink_durably, write_atomic
from stoker.store.layout import StateLayout
from stoker.store.requests import Request, finish_request, pending_requests

CHECK_RELOAD = "stokerd.common.check_reload"
TRY_EVERY_S = 1.0
SHORTAGE_S = 5.0
_PROBE = b"x" * 8192  # more than a record needs: a single free block must not end the wait

NO_DATA = "nothing to do: the pipeline has no dataset, its trainer brings its own data"

Handler = Callable[[Request], Mapping[str, Any] | None]  # returns the outcome; None: it is answered later


def repeat(
    context: DaemonContext,
    pool: WorkerPool[Any],
    start: Callable[[], None],
    cycle: Callable[[], int | None],
    *,
    unfinished: str,
) -> int:
    """Starts, then repeats cycles until one returns an exit code or a stop is asked; returns the code.

    A SIGHUP ends the workers in order, and the daemon begins again with the code and the file of now.
    `unfinished` is the message of a stop before `--once` is finished.
    """
    pool.end_leftovers()
    reload, checked = Reload(context, CHECK_RELOAD), None
    try:
        start()
        while not context.stopping and (checked := reload.check()) is None:
            try:
                if (code := cycle()) is not None:
                    return code
            except (StorageError, WorkerNotStarted) as problem:
                wait_out(context, problem)
    finally:
        context.log.footer.clear()
        pool.stop()
    if checked is not None:
        try:
            context.hand_over({}, {}, checked)
        except OSError as problem:
            raise Transient(f"the code of now cannot be started: {problem}") from problem
    if not context.once:
        return 0
    context.log.info("interrupted", message=unfinished)
    return Transient.exit_code


def wait_out(context: DaemonContext, problem: StorageError | WorkerNotStarted) -> None:
    """Waits until the state directory can be written, or some seconds where a worker could not be started.

    A stop ends the wait; with --once raises the problem. On a full disk the first call frees the daemon's
    reserve and returns at once; while `context.reserve.spent`, the daemon begins no new work. The failed
    write loses no fact: a fact counts only once its record is durable, and its work is repeated.
    """
    reason, is_state = str(problem), isinstance(problem, StorageError)
    is_full = isinstance(problem, StorageError) and problem.errno in FULL
    if is_full and context.reserve.give_back(reason) and not context.once:
        return  # running work can be recorded; work that writes much waits while the reserve is spent
    if context.once:
        raise problem
    context.events.record("state_unwritable" if is_state else "worker_not_started", reason=reason)
    until = math.inf if is_state else time.monotonic() + SHORTAGE_S
    while not context.stopping and time.monotonic() < until:
        context.beat({**context.metrics.status, "trouble": reason}, f"waiting: {reason}")
        context.waiter.wait(0.0)  # for signals alone; the workers' messages wait in their pipes
        time.sleep(TRY_EVERY_S)
        if is_state and _takes_a_write(context.layout.state / ".tmp-probe"):
            context.events.record("state_writable")
            return


def _takes_a_write(probe: Path) -> bool:
    try:
        write_atomic(probe, _PROBE)
        unlink_durably(probe)
    except StorageError:
        return False
    return True


class RequestBox:
    """The directory of requests to a daemon."""

    def __init__(self, layout: StateLayout, daemon: str, events: Events) -> None:
        self._layout, self._daemon, self._events = layout, daemon, events
        self._stuck: dict[str, StorageError] = {}

    def read(self) -> list[Request]:
        """Returns the requests to act on, oldest first; records each stuck entry once."""
        known = set(self._stuck)
        requests = pending_requests(self._layout, self._daemon, self._stuck)
        for name in sorted(self._stuck.keys() - known):
            path = self._layout.requests(self._daemon) / name
            reason = f"{self._stuck[name]}; it is skipped: remove it"
            self._events.record("request_stuck", path=str(path), reason=reason)
        return requests

    def answer(self, handlers: Mapping[str, Handler]) -> None:
        """Has each request answered by the handler of its verb; refuses other verbs."""
        for request in self.read():
            if (handler := handlers.get(request.verb)) is not None:
                outcome = handler(request)
            else:
                known = ", ".join(sorted(handlers))
                outcome = {"refused": f"unknown verb {request.verb}; this daemon knows {known}"}
            if outcome is not None:
                self.finish(request, outcome)

    def finish(self, request: Request, outcome: Mapping[str, Any]) -> None:
        """Records a request's outcome and removes the request."""
        finish_request(self._layout, self._daemon, request, outcome)
