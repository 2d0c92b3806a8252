"""The train supervisor: keeps one training run alive and honest, from its first data to its last step.

One loop: take in what workers, trainer and operators say, let stoker.supervise.decide choose what to do, do
it, show how the run is, wait. The position in the run is data (stoker.supervise.state).
"""

from __future__ import annotations

import time
from dataclasses import replace

from stoker.kit.context import DaemonContext
from stoker.kit.process.prctl import set_child_subreaper
from stoker.kit.process.process_id import reap_strays
from stoker.store.errors import StorageError
from stoker.supervise.actions import Enter, Pause, Wait
from stoker.supervise.decide import Seen, decide, delay_s
from stoker.supervise.health.guarded import GuardedEnd
from stoker.supervise.report.metrics import Meters
from stoker.supervise.state import Phase
from stokerd.common.alerts import Alerts
from stokerd.supervision import observe
from stokerd.supervision.activities import failed, on_end
from stokerd.supervision.effects import Effects
from stokerd.supervision.requests import Requests
from stokerd.supervision.run import jitter, load_run
from stokerd.supervision.status import RunBoard
from stokerd.supervision.workers import Workers

WAIT_S = 1.0
REAP_S = 2.0
COMPLAINT_S = 60.0
GAP_S = 10.0  # a cycle this long was not waiting: the machine or this process did not run


def main(context: DaemonContext) -> int:
    """Supervise the run until asked to stop; with --once until it is finished. Returns the exit code."""
    supervisor = Supervisor(context)
    try:
        return supervisor.supervise()
    finally:
        supervisor.close()


class Supervisor:
    """The loop around one run."""

    def __init__(self, context: DaemonContext) -> None:
        self.context, meters = context, Meters(context.metrics)
        self.run, self.workers = load_run(context), Workers(context)
        self.effects = Effects(context, self.run, self.workers, meters)
        self.requests = Requests(context, self.effects.rollbacks)
        self.board = RunBoard(context, self.run, self.workers, meters)
        self._policy = context.pipeline.supervise
        self._began_at = time.monotonic()
        self._reap_at = 0.0
        self._alerts = Alerts(context.events, COMPLAINT_S)

    def supervise(self) -> int:
        """Cycle until the run, or the supervisor, is to end; returns the exit code."""
        set_child_subreaper()
        self.workers.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            wait_s = self._cycle()
            self.board.show()
            if (code := self.run.state.exit_code) is not None:
                return code
            self.context.waiter.wait(wait_s)

    def _cycle(self) -> float:
        """Take in what is new and act on it; returns the seconds to wait at most."""
        try:
            self._hear_workers()
            self._reap()
            end = self._hear_trainer()
            self.requests.look()
            self.effects.mirror_beside()
            return self._advance(end)
        except StorageError as problem:
            return self._storage_trouble(problem)

    def _hear_workers(self) -> None:
        for job, end in self.workers.ended():
            self.run.state = self.run.state.awakened()
            if self.run.mirror is not None:
                self.run.mirror.tend_at = 0.0
            try:
                self.effects.apply(on_end(job, end))
            except StorageError as problem:
                if job.is_awaited:
                    raise
                self.effects.apply(failed(job, str(problem)))

    def _reap(self) -> None:
        now = time.monotonic()
        if now >= self._reap_at:
            self._reap_at = now + REAP_S
            reap_strays(self.workers.pids | self.effects.trainer.pids)

    def _hear_trainer(self) -> GuardedEnd | None:
        now = time.monotonic()
        gap_s, self._began_at = now - self._began_at, now
        end = self.effects.trainer.hear(is_excused=gap_s > GAP_S)
        if end is not None:
            self.board.show()  # the trainer's last words count
        return end

    def _advance(self, end: GuardedEnd | None) -> float:
        """Decide and act until nothing further can be done now."""
        while True:
            actions = decide(self.run.state, self._seen(end), self._policy, time.monotonic())
            self.effects.apply(*actions)
            if self.run.state.exit_code is not None:
                return 0.0
            if isinstance(actions[-1], Wait):
                return min(WAIT_S, actions[-1].seconds)

    def _seen(self, end: GuardedEnd | None) -> Seen:
        run, record = self.run, self.run.store.record
        seen = Seen(
            is_stopping=self.context.stopping,
            is_once=self.context.once,
            jitter=jitter(),
            jobs=self.workers.jobs,
            fruitless=record.fruitless if record else 0,
            best_step=record.best_step if record else 0,
            newest=run.at.path.name,
            step=run.at.step,
            end=end,
        )
        match run.state.phase:
            case Phase.CLEANING:
                return replace(seen, left=self.effects.leftovers())
            case Phase.PROVING:
                return observe.proving(run, seen, self.effects.rollbacks.next())
            case Phase.WAITING:
                return replace(seen, over=run.accounts.over(run.at), gate=run.data.gate)
            case Phase.FINISHED:
                return observe.finished(run, seen)
            case _:
                return seen

    def _storage_trouble(self, problem: StorageError) -> float:
        """A full disk passes: training goes on, anything else begins again."""
        self._alerts.raise_("storage_trouble", message=str(problem))
        if self.run.state.phase is not Phase.TRAINING:
            pause_s = delay_s(self._policy.backoff, self.run.state.failures, jitter())
            doing = "the state directory cannot be used; trying"
            self.effects.apply(Enter(Phase.CLEANING), Pause(pause_s, doing, is_failure=True))
        return WAIT_S

    def close(self) -> None:
        """End what this process started: workers at once, a trainer after it has saved."""
        self.effects.trainer.close()
        self.workers.stop()
        self.workers.stop_mirror()
