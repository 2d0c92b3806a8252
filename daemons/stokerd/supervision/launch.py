"""One launch of the trainer, watched from its start to its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from stoker.kit.context import DaemonContext
from stoker.kit.lock import Lock
from stoker.kit.process.process_id import children_tree
from stoker.kit.process.tree_memory import sample_tree
from stoker.plan.positions import Position
from stoker.supervise.health import evidence, liveness
from stoker.supervise.health.exit_class import Ending
from stoker.supervise.health.guarded import GuardedTrainer
from stoker.supervise.health.notify_socket import Inbox
from stoker.supervise.health.trainer_protocol import TrainerView, heard, parse
from stoker.supervise.run.launch_record import TRAINER, Launch, trainer_environment
from stokerd.supervision.cycle import Turns

EVIDENCE_S = 5.0
GUARD_MARGIN_S = 30.0  # beyond the stop time, in which a guard that runs has killed what is left
GAP_S = 10.0  # a turn this long was not waiting: the machine or this process stood still


class LaunchWatch:
    """A running launch: what its trainer says, whether it lives, how it ends."""

    def __init__(self, context: DaemonContext, turns: Turns, launch: Launch) -> None:
        self.context, self.events, self.turns = context, context.events, turns
        self.launch = launch
        self.run_layout = context.layout.run(context.pipeline.train.run)
        self.limits = liveness.limits_for(context.pipeline.supervise.hang_limit)
        now = time.monotonic()
        self.view = TrainerView.started(launch.launch, now)
        self.step_times = liveness.StepTimes()
        self.stillness = evidence.Stillness(now)
        self.trainer: GuardedTrainer | None = None
        self.suspected = False
        self.stop_asked_at: float | None = None
        self.rss_bytes = 0  # of the trainer and what it started
        self.hung = False

    @property
    def trainer_pid(self) -> int | None:
        """The trainer's pid once its guard has told it."""
        return self.trainer.trainer_pid if self.trainer else None

    @property
    def stop_asked(self) -> bool:
        """Whether the trainer was asked to stop, for whatever reason."""
        return self.stop_asked_at is not None

    @property
    def step(self) -> int:
        """The newest step the trainer told of, or the one it resumed from."""
        return self.view.step if self.view.step is not None else self.launch.resume_step

    @property
    def stepped(self) -> bool:
        """Whether it has made a step: what came before, once a launch, is no part of its pace."""
        return self.step > self.launch.resume_step

    @property
    def position(self) -> Position | None:
        """The position the trainer told last; None before its first step."""
        return Position(*self.view.position) if self.view.position else None

    def run(self, lock: Lock, meanwhile: Callable[[], None]) -> Ending:
        """Start the trainer and turn until nothing of it is left; `meanwhile` is called each turn."""
        waiter = self.context.waiter
        inbox = Inbox(self.launch.notify_socket)
        try:
            self.trainer = trainer = GuardedTrainer(
                TRAINER,
                environ=trainer_environment(os.environ, self.launch, self.run_layout),
                lock=lock,
                stop_time_s=self.context.pipeline.supervise.stop_time,
            )
            self.turns.guard_pid = trainer.pid
            waiter.add_fd(inbox.fileno(), "trainer")
            waiter.add_fd(trainer.fileno(), "guard")
            try:
                while (end := trainer.poll()) is None:
                    self.turns.turn()
                    self.hear(inbox)
                    if self.context.stopping or self.turns.changed or self.stop_asked:
                        self.stop(trainer)
                    self.judge(trainer)
                    meanwhile()
            except BaseException:
                trainer.stop()  # nobody watches it any more: it saves and ends
                raise
            finally:
                waiter.remove_fd(trainer.fileno())
                waiter.remove_fd(inbox.fileno())
                trainer.close()
                self.turns.guard_pid = None
            self.hear(inbox)
        finally:
            inbox.close()
        return Ending(end.code, end.signum, self.stop_asked, self.hung, self.view.error)

    def hear(self, inbox: Inbox) -> None:
        """Read every word that has arrived; only then is anything judged."""
        now = time.monotonic()
        for datagram in inbox.drain():
            word = parse(datagram, self.launch.launch)
            if word is None:
                continue
            if (word.phase or self.view.phase) != "train":
                self.step_times.interrupted()
            elif word.step is not None:
                self.step_times.stepped(word.step, now)
            self.view = heard(self.view, word, now)

    def stop(self, trainer: GuardedTrainer) -> None:
        """Ask for a stop, once: the trainer finishes its step, seals a checkpoint and ends.

        A guard that has not seen to it long after the stop time is stuck itself, and is killed.
        """
        now = time.monotonic()
        if self.stop_asked_at is not None:
            if now - self.stop_asked_at > self.context.pipeline.supervise.stop_time + GUARD_MARGIN_S:
                self.stop_asked_at = now
                self.events.record("guard_stuck", "error", launch=self.launch.launch, pid=trainer.pid)
                trainer.kill()
        else:
            self.stop_asked_at = now
            self.events.record("trainer_stop_asked", launch=self.launch.launch, step=self.step)
            trainer.stop()

    def judge(self, trainer: GuardedTrainer) -> None:
        """Ask whether it is alive, and stop it when it is not."""
        now = time.monotonic()
        if self.turns.gap_s > GAP_S:
            self.view = replace(self.view, heard_at=now, moved_at=now)
            self.stillness = evidence.Stillness(now)
        if self.turns.due("evidence", EVIDENCE_S):
            tree = [process.pid for process in children_tree(trainer.pid)]
            self.stillness.sampled(evidence.work_of(tree), now)
            self.rss_bytes = sample_tree(self.trainer_pid) if self.trainer_pid is not None else 0
        if self.stop_asked:
            return
        silence = liveness.Silence(
            now - self.view.heard_at, now - self.view.moved_at, self.stillness.still_s(now)
        )
        verdict = liveness.judge(self.view.phase, silence, self.step_times.p99_s(), self.limits)
        if verdict.state == "alive":
            self.suspected = False
        elif verdict.state == "suspect" and not self.suspected:
            self.suspected = True
            self._record("trainer_suspect", trainer, verdict.why)
        elif verdict.state == "stop":
            self.hung = True
            self._record("trainer_hung", trainer, verdict.why)
            self.stop(trainer)

    def _record(self, event: str, trainer: GuardedTrainer, why: str) -> None:
        tree = [process.pid for process in children_tree(trainer.pid)]
        self.events.record(
            event,
            "warning",
            launch=self.launch.launch,
            phase=self.view.phase,
            step=self.step,
            reason=why,
            processes=evidence.describe(tree),
        )
