"""The train supervisor's loop: runs one training run from its first data to its last step.

Each cycle takes in the messages of workers, trainer and operators, has stoker.supervise.decide choose
actions, carries them out, shows status and metrics, and waits. The position in the run is data
(stoker.supervise.state).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.kit.exec import set_child_subreaper
from stoker.kit.handover import Handover
from stoker.kit.process import reap_strays
from stoker.kit.reload import Reload
from stoker.store.errors import StorageError, Transient
from stoker.supervise.actions import Enter, Pause, Wait
from stoker.supervise.decide import decide
from stoker.supervise.health.exits import GuardedEnd
from stoker.supervise.health.guarded import WORDS
from stoker.supervise.state import Phase
from stokerd.common.loop import CHECK_RELOAD
from stokerd.supervision.effects import Effects
from stokerd.supervision.jobs import gpus
from stokerd.supervision.observe import observe
from stokerd.supervision.run import load_run
from stokerd.supervision.status import Status

WAIT_S = 1.0
REAP_S = 2.0
GATHER_S = 0.05  # of a trainer that tells each of many steps a second
STORAGE_S = 5.0  # between two tries at a state directory that cannot be used


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
        self.effects, self.status = Effects(self.run), Status(self.run)
        self.jobs = self.effects.jobs
        self.reload = Reload(context, CHECK_RELOAD, self._work)
        self._reap_at = 0.0
        if context.handover is not None:
            self._adopt(context.handover)

    def supervise(self) -> int:
        """Repeats cycles until an exit code is set, and returns it."""
        set_child_subreaper()
        self.jobs.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            wait_s = self._cycle()
            self.run.note_time()
            self.status.show()
            if (code := self.run.state.exit_code) is not None:
                return code
            checked, is_stopping = self.reload.check(), self.context.stopping
            if checked is not None and self.effects.can_be_handed_over and not is_stopping:
                self._begin_again(checked)
            self._wait(wait_s)

    def _wait(self, wait_s: float) -> None:
        """Waits until a cycle is due: for anything but words of a trainer that tell of steps alone."""
        until, heard_at = time.monotonic() + wait_s, 0.0
        while events := self.context.waiter.wait(max(0.0, until - time.monotonic())):
            if any(event.about != WORDS for event in events) or not self.effects.trainer.listen():
                return
            self.run.note_time()
            if time.monotonic() - heard_at < GATHER_S:  # several of them at once cost little more than one
                time.sleep(GATHER_S)
            heard_at = time.monotonic()

    def _begin_again(self, checked: Mapping[str, Any]) -> None:
        """Becomes the code and the configuration of now under a running trainer; its workers end before."""
        try:
            self.jobs.stop()
            self.jobs.end_leftovers()  # raises Transient where the kernel keeps one
            self.run.goodput.keep()
            self.context.hand_over(self._work(), self.effects.trainer.descriptors, checked)
        except (OSError, Transient) as problem:
            self.reload.refuse(f"the new code cannot be started: {problem}")

    def _work(self) -> dict[str, Any]:
        """Returns what this process's next image needs to go on."""
        trainer = self.effects.trainer.handed_over()
        jobs, run = self.jobs.handed_over(), self.run.handed_over()
        return {"run": run, "jobs": jobs, "trainer": trainer, "shown": self.status.last}

    def _adopt(self, handover: Handover) -> None:
        """Goes on from where this process's image before has begun again."""
        self.run.adopt(handover.work["run"])
        self.effects.adopt(handover)
        self.status.last = tuple(handover.work["shown"])

    def _cycle(self) -> float:
        """Takes in messages and results, and acts on them; returns the longest time to wait, in seconds."""
        try:
            trainers_end = self.effects.trainer.hear()
            self.jobs.hear()  # after it: what the cards told before its end is evidence
            self._reap()
            if trainers_end is not None:
                self.status.show()  # with the trainer's last words
            self.effects.watches.refresh(gpus.STATE.of(self.run).cards)
            self.effects.requests.refresh()
            self.jobs.start_due()
            return self._advance(trainers_end)
        except StorageError as problem:
            return self._storage_trouble(problem)

    def _reap(self) -> None:
        now = time.monotonic()
        if now >= self._reap_at:
            self._reap_at = now + REAP_S
            reap_strays(self.jobs.pids | self.effects.trainer.pids | self.reload.pids)

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
        self.effects.requests.alerts.raise_("storage_trouble", message=str(problem))
        if self.run.state.phase is not Phase.TRAINING:
            pause = Pause(STORAGE_S, "the state directory cannot be used; trying")
            self.effects.apply(Enter(Phase.CLEANING), pause)
        return WAIT_S

    def close(self) -> None:
        """Ends the processes of this supervisor: workers at once, a trainer after it has saved."""
        self.effects.trainer.close()
        self.jobs.stop()
        self.run.note_time()
        self.run.goodput.keep()
