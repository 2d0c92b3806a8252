"""The train supervisor's loop: runs one training run from its first data to its last step.

Each cycle takes in the messages of workers, trainer and operators, has stoker.supervise.decide choose
actions, carries them out, shows status and metrics, and waits. The position in the run is data
(stoker.supervise.state).
"""

from __future__ import annotations

import time

from stoker.kit.context import DaemonContext
from stoker.kit.process.prctl import set_child_subreaper
from stoker.kit.process.process_id import reap_strays
from stoker.store.errors import StorageError
from stoker.supervise.actions import Enter, Pause, Wait
from stoker.supervise.decide import decide
from stoker.supervise.health.guarded import GuardedEnd
from stoker.supervise.state import Phase
from stokerd.common.alerts import Alerts
from stokerd.supervision.effects import Effects
from stokerd.supervision.observe import observe
from stokerd.supervision.run import load_run
from stokerd.supervision.status import Status
from stokerd.supervision.workers import MIRROR, Workers

WAIT_S = 1.0
REAP_S = 2.0
STORAGE_S = 5.0  # between two tries at a state directory that cannot be used
COMPLAINT_S = 60.0


def main(context: DaemonContext) -> int:
    """Supervises the run until asked to stop, with --once until it is finished; returns the exit code."""
    supervisor = Supervisor(context)
    try:
        return supervisor.supervise()
    finally:
        supervisor.close()


class Supervisor:
    def __init__(self, context: DaemonContext) -> None:
        self.context, self.run = context, load_run(context)
        self.workers = Workers(self.run)
        self.effects, self.status = Effects(self.run, self.workers), Status(self.run)
        self._reap_at = 0.0
        self._alerts = Alerts(context.events, COMPLAINT_S)

    def supervise(self) -> int:
        """Repeats cycles until an exit code is set, and returns it."""
        set_child_subreaper()
        self.workers.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            wait_s = self._cycle()
            self.status.show(self.workers.jobs.get(MIRROR))
            if (code := self.run.state.exit_code) is not None:
                return code
            self.context.waiter.wait(wait_s)

    def _cycle(self) -> float:
        """Takes in messages and results, and acts on them; returns the longest time to wait, in seconds."""
        try:
            for job, end in self.workers.ended():
                self.effects.ended(job, end)
            self._reap()
            trainers_end = self.effects.trainer.hear()
            if trainers_end is not None:
                self.status.show(
                    self.workers.jobs.get(MIRROR)
                )  # status and metrics show the trainer's last messages
            self.effects.requests.look()
            self.effects.mirror_beside()
            return self._advance(trainers_end)
        except StorageError as problem:
            return self._storage_trouble(problem)

    def _reap(self) -> None:
        now = time.monotonic()
        if now >= self._reap_at:
            self._reap_at = now + REAP_S
            reap_strays(self.workers.pids | self.effects.trainer.pids)

    def _advance(self, end: GuardedEnd | None) -> float:
        """Decides and acts until the decision is to wait; returns for how many seconds."""
        policy = self.context.pipeline.supervise
        while True:
            seen = observe(self.run, self.effects, end)
            actions = decide(self.run.state, seen, policy, time.monotonic())
            self.effects.apply(*actions)
            if self.run.state.exit_code is not None:
                return 0.0
            if isinstance(actions[-1], Wait):
                return min(WAIT_S, actions[-1].seconds)

    def _storage_trouble(self, problem: StorageError) -> float:
        """Survives a full state disk: training continues, any other phase starts over from cleaning."""
        self._alerts.raise_("storage_trouble", message=str(problem))
        if self.run.state.phase is not Phase.TRAINING:
            pause = Pause(STORAGE_S, "the state directory cannot be used; trying")
            self.effects.apply(Enter(Phase.CLEANING), pause)
        return WAIT_S

    def close(self) -> None:
        """Ends the processes of this supervisor: workers at once, a trainer after it has saved."""
        self.effects.trainer.close()
        self.workers.stop()
        self.workers.stop_mirror()
