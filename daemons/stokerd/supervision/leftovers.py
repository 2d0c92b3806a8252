"""Before a launch: wait until nothing of an earlier one is left, helping where need be."""

from __future__ import annotations

import signal
import time

from stoker.kit.context import DaemonContext
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process.process_id import processes_with_environment, signal_process
from stoker.store.errors import LockHeld
from stoker.supervise.health import leftovers as cleaning
from stoker.supervise.health.leftovers import Cleaning, Leftovers
from stokerd.supervision.cycle import Turns


class Ground:
    """What an earlier launch may have left: a lock that is held, processes that live."""

    def __init__(self, context: DaemonContext, turns: Turns) -> None:
        self.events, self.turns = context.events, turns
        self.name = context.pipeline.train.run
        self.run = context.layout.run(self.name)
        self.stop_time_s = context.pipeline.supervise.stop_time

    def clear(self) -> Lock:
        """Wait until nothing of an earlier launch is left, helping where need be; returns its lock."""
        began, asked, told = time.monotonic(), False, False
        while True:
            lock, left = self.leftovers()
            waited_s = time.monotonic() - began
            action = cleaning.decide(left, waited_s=waited_s, asked=asked, stop_time_s=self.stop_time_s)
            if action is Cleaning.CLEAR and lock is not None:
                return lock
            if lock is not None:
                lock.release()
            if not told:
                told = True
                pids = [process.pid for process in left.processes]
                self.events.record("leftovers_found", "warning", pids=pids, guarded=left.guarded)
            if action in (Cleaning.TERM, Cleaning.KILL):
                asked = True
                for process in left.processes:
                    signal_process(process, signal.SIGKILL if action is Cleaning.KILL else signal.SIGTERM)
            self.turns.doing = "waiting for an earlier trainer to save and end"
            self.turns.turn_or_stop(0.2)

    def leftovers(self) -> tuple[Lock | None, Leftovers]:
        """What is left of an earlier launch; with the trainer's lock if that was free."""
        try:
            lock = Lock.acquire(self.run.trainer_lock, purpose=f"launch of run {self.name}")
        except LockHeld:
            lock = None
        processes = processes_with_environment("STOKER_RUN_DIR", str(self.run.root))
        return lock, Leftovers(lock is None, read_holder(self.run.rank0_lock) is not None, tuple(processes))
