"""What no daemon can go on without: said once, waited for, and then gone on with."""

from __future__ import annotations

import time

from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerNotStarted
from stoker.store.errors import FULL, StorageError
from stoker.store.files import unlink_durably, write_atomic

TRY_EVERY_S = 1.0
SHORTAGE_S = 5.0
_PROBE = b"x" * 8192  # more than a record needs, so that a single freed block does not call us back in vain


def wait_for_state(context: DaemonContext, problem: StorageError) -> None:
    """Wait until the state directory takes a write again, or a stop is asked; with --once raise the problem.

    A full disk is first given what was kept for it: then this returns at once, and `context.reserve.spent`
    says that nothing new may be begun. Nothing is lost by what failed: a fact counts only once its record is
    durable, and its work is repeated.
    """
    full = problem.errno in FULL
    if full and context.reserve.give_back(str(problem)) and not context.once:
        return  # what is under way can be recorded; whoever writes much waits while the reserve is spent
    if context.once:
        raise problem
    reason = str(problem)
    context.events.record("state_unwritable", level="error", reason=reason)
    probe = context.layout.state / ".tmp-probe"
    while not context.stopping:
        context.beat({"trouble": reason}, f"waiting: {reason}")
        context.waiter.wait(0.0)  # for signals alone; what the workers have to say waits in their pipes
        time.sleep(TRY_EVERY_S)
        try:
            write_atomic(probe, _PROBE)
            unlink_durably(probe)
        except StorageError:
            continue
        context.events.record("state_writable")
        return


def wait_for_processes(context: DaemonContext, problem: WorkerNotStarted) -> None:
    """Wait a while, for others to end, or until a stop is asked; with --once raise the problem.

    What was to be begun is not on record yet, or is recorded as begun with nobody at it: it begins anew.
    """
    if context.once:
        raise problem
    reason = str(problem)
    context.events.record("worker_not_started", level="error", reason=reason)
    context.beat({"trouble": reason}, f"waiting: {reason}")
    until = time.monotonic() + SHORTAGE_S
    while not context.stopping and time.monotonic() < until:
        context.waiter.wait(0.0)
        time.sleep(TRY_EVERY_S)
