"""The train supervisor's loop: runs one training run from its first data to its last step.

Each cycle takes in the messages of workers, trainer and operators, has stoker.supervise.decide choose
actions, carries them out, shows status and metrics, and waits. The position in the run is data
(stoker.supervise.state).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.checkpoints.mirror.layout import fallback
from stoker.checkpoints.retention import counts
from stoker.kit.context import DaemonContext
from stoker.kit.exec import set_child_subreaper
from stoker.kit.handover import Handover
from stoker.kit.process import reap_strays
from stoker.kit.reload import Reload
from stoker.store.errors import StorageError, Transient
from stoker.supervise.actions import Enter, Pause, ProveCheckpoint, Wait
from stoker.supervise.decide import Seen, decide, mirror_job
from stoker.supervise.health.exits import ExitClass, GuardedEnd
from stoker.supervise.health.guarded import WORDS
from stoker.supervise.run.record import BY_TRAINER
from stoker.supervise.state import Phase
from stokerd.common.loop import CHECK_RELOAD
from stokerd.supervision import policies
from stokerd.supervision.effects import Effects
from stokerd.supervision.jobs.mirror import MIRROR
from stokerd.supervision.jobs.workers import Workers
from stokerd.supervision.run import Run, load_run
from stokerd.supervision.status import Status
from stokerd.supervision.trainer.gpus import Gpus

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
        self.workers, self.gpus = Workers(context), Gpus(context)
        self.effects, self.status = Effects(self.run, self.workers), Status(self.run, self.gpus)
        self.reload = Reload(context, CHECK_RELOAD, self._work)
        self._reap_at = 0.0
        if context.handover is not None:
            self._adopt(context.handover)

    def supervise(self) -> int:
        """Repeats cycles until an exit code is set, and returns it."""
        set_child_subreaper()
        self.workers.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            wait_s = self._cycle()
            self.run.note_time()
            self.status.show(self.workers.jobs.get(MIRROR))
            if (code := self.run.state.exit_code) is not None:
                return code
            checked, is_stopping = self.reload.look(), self.context.stopping
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
            self.effects.stop_workers()
            self.gpus.close()
            self.run.goodput.keep()
            self.context.hand_over(self._work(), self.effects.trainer.descriptors, checked)
        except (OSError, Transient) as problem:
            self.reload.refuse(f"the new code cannot be started: {problem}")

    def _work(self) -> dict[str, Any]:
        """Returns what this process's next image needs to go on."""
        trainer = self.effects.trainer.handed_over()
        return {"run": self.run.handed_over(), "trainer": trainer, "shown": self.status.last}

    def _adopt(self, handover: Handover) -> None:
        """Goes on from where this process's image before has begun again."""
        self.run.adopt(handover.work["run"])
        self.effects.adopt(handover)
        self.status.last = tuple(handover.work["shown"])

    def _cycle(self) -> float:
        """Takes in messages and results, and acts on them; returns the longest time to wait, in seconds."""
        try:
            for job, end in self.workers.ended():
                self.effects.ended(job, end)
            self._reap()
            trainers_end = self.effects.trainer.hear()
            xids = self.gpus.look(self.run.state.live)
            self.effects.trainer.note_cards(xids, self.gpus.cards.others_share())
            if trainers_end is not None:
                self.status.show(self.workers.jobs.get(MIRROR))  # with the trainer's last words
            self.effects.watches.look(self.gpus.cards)
            self.effects.external.look(self.effects.trainer.take_told())
            self.effects.requests.look()
            self.effects.mirror_beside()
            self.effects.hook.look()
            return self._advance(trainers_end)
        except StorageError as problem:
            return self._storage_trouble(problem)

    def _reap(self) -> None:
        now = time.monotonic()
        if now >= self._reap_at:
            self._reap_at = now + REAP_S
            beside = self.gpus.pids | self.reload.pids | self.effects.hook.pids | self.effects.external.pids
            reap_strays(self.workers.pids | self.effects.trainer.pids | beside)

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
        self.effects.hook.stop()
        self.effects.external.stop()
        self.run.note_time()
        self.run.goodput.keep()
        self.workers.stop()
        self.workers.stop_mirror()
        self.gpus.close()


def observe(run: Run, effects: Effects, end: GuardedEnd | None) -> Seen:
    """Returns the facts for `decide`; `end` is the end of the trainer, if it has ended."""
    record, jobs = run.store.record, effects.jobs
    seen = Seen(
        is_stopping=run.context.stopping,
        is_once=run.context.once,
        until=run.context.until,
        jobs=jobs,
        fruitless=record.fruitless if record else 0,
        best_step=record.best_step if record else 0,
        held=record.held if record else "",
        is_halted=record is not None and record.halted is not None,
        is_forking=record is not None and record.fork is not None,
        newest=run.at.path.name,
        step=run.at.step,
        end=end,
    )
    match run.state.phase:
        case Phase.CLEANING:
            return replace(seen, left=effects.leftovers())
        case Phase.PROVING:
            requests = effects.requests
            if (outside := effects.external.due()) is not None:
                return replace(seen, outside=outside)
            rollback = requests.next_rollback() or requests.of_policy() or requests.longer_horizon()
            if rollback is not None:
                return replace(seen, rollback=rollback, look="no" if run.mirror is None else "try")
            return _proving(run, seen)
        case Phase.WAITING:
            outside = effects.external.due()
            return replace(seen, over=run.accounts.over(run.at), gate=run.data.gate, outside=outside)
        case Phase.FINISHED if record is not None and record.state != "finished":
            return replace(seen, goes_on=True)
        case Phase.FINISHED if not run.state.is_at_rest:
            return replace(seen, is_settled=_is_settled(run, seen) and not effects.hook.is_busy)
        case _:
            return seen


def _proving(run: Run, seen: Seen) -> Seen:
    """Returns the facts by which a checkpoint is chosen."""
    history = run.accounts.history()
    if run.state.is_settled:
        exit_, over = run.state.exit, run.accounts.over(run.at)
        if exit_ is not None and exit_.kind is ExitClass.FINISHED and run.is_foreign:
            over = over or BY_TRAINER
        return replace(seen, over=over, facts=policies.facts(run) if exit_ is not None else seen.facts)
    name, has_rejected = run.checkpoints.newest_candidate(history), "invalid" in run.state.proofs.values()
    newest = run.checkpoints.get(name)
    seen = replace(
        seen,
        candidate=name,
        is_on_history=newest is None or counts(int(newest.body["timeline"]), newest.step, history),
        why_not_from_start="" if name else run.accounts.why_not_from_start(has_rejected=has_rejected),
    )
    if run.mirror is None:
        return seen
    step = newest.step if newest is not None else None
    look = run.mirror.to_look(step, history, has_rejected=has_rejected)
    newer = fallback(run.mirror.copies, history, -1 if step is None else step)
    return replace(seen, look=look, newer=policies.newest_usable(run, newer))


def _is_settled(run: Run, seen: Seen) -> bool:
    """Returns whether every checkpoint is proven, and mirrored as far as the policy asks."""
    now, history, mirror = time.monotonic(), run.accounts.history(), run.mirror
    if ProveCheckpoint.slot in seen.jobs or run.checkpoints.unproven(history, now):
        return False
    if mirror is None or run.store.record is None or mirror.trouble is not None:
        return True
    local, policy = run.checkpoints.to_mirror(), run.checkpoints.policy
    return MIRROR not in seen.jobs and mirror_job(mirror, local, history, policy, now) is None
