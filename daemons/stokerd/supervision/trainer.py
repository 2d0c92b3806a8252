"""The trainer: launched under its guard, heard, stopped, and put on record when it has ended."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

from stoker.corpus.records.pin import DatasetPin
from stoker.kit.context import DaemonContext
from stoker.kit.lock import Lock
from stoker.kit.process.process_id import ProcessId, children_tree
from stoker.kit.process.sampler import sample_tree
from stoker.store.errors import DataError, StorageError
from stoker.store.names import new_id, utc_now
from stoker.store.record import write_record
from stoker.supervise.actions import EndLaunch, StopTrainer
from stoker.supervise.health.evidence import Stillness, describe, work_of
from stoker.supervise.health.guarded import GuardedEnd, GuardedTrainer
from stoker.supervise.health.notify_socket import Inbox
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.report.metrics import Meters
from stoker.supervise.run.launch_log import launched_body, note_launch
from stoker.supervise.run.launch_record import TRAINER, Launch, launch_body, trainer_environment
from stoker.supervise.state import Trainer
from stokerd.supervision.run import Run

EVIDENCE_S = 5.0


class TrainerControl:
    """Holds the handles of a running trainer: its guard with the report pipe, and the socket it writes to."""

    def __init__(self, context: DaemonContext, run: Run, meters: Meters) -> None:
        self.context, self.run, self.meters = context, run, meters
        self.guard: GuardedTrainer | None = None
        self.inbox: Inbox | None = None

    @property
    def pids(self) -> set[int]:
        """The guard, while there is one."""
        return {self.guard.pid} if self.guard is not None else set()

    def launch(self, lock: Lock) -> Trainer:
        """Launch the trainer from the newest proven checkpoint; its guard takes over the lock."""
        run, pin = self.run, self.run.planner.pin()
        if pin is None:
            raise DataError(f"{run.pipeline.layout.datasets} has no pin any more; start the stage-shard loop")
        step, position = run.at.step, run.at.position
        if run.data.repairs.mended > run.data.mended:
            run.store.fruitful()
        launch = Launch(
            launch=new_id(),
            timeline=run.accounts.timelines().current,
            resume_from=run.newest.path if run.newest else None,
            resume_step=step,
            until=run.data.window.until(step, position, run.accounts.skips()),
            notify_socket=self.context.runtime.notify_socket(run.pipeline.train.run),
        )
        run.store.launching()
        try:
            self._record(launch, pin)
        except StorageError:
            run.store.is_last_forgiven = True  # for want of a disk, which says nothing against the run
            raise
        run.data.needed = {}  # proven now; what leaves hot and comes back does not harm an open file
        return self._start(launch, lock)

    def _record(self, launch: Launch, pin: DatasetPin) -> None:
        run, events = self.run, self.context.events
        steps = run.accounts.steps(run.at)
        body = launch_body(launch, run.pipeline, pin, run.store.begun, steps=steps)
        write_record(run.layout.launch, body)
        line = launched_body(body, resume_step=launch.resume_step, time=utc_now())
        if damage := note_launch(run.layout.launches, line):
            events.record("launch_log_damaged", "warning", message=damage[0])
        words: dict[str, Any] = {"launch": launch.launch, "resume_step": launch.resume_step}
        words |= {} if launch.until is None else {"until": launch.until}
        events.record("trainer_launched", **words)

    def _start(self, launch: Launch, lock: Lock) -> Trainer:
        self.inbox = inbox = Inbox(launch.notify_socket)
        self.guard = guard = GuardedTrainer(
            TRAINER,
            environ=trainer_environment(os.environ, launch, self.run.layout),
            lock=lock,
            stop_time_s=self.run.pipeline.supervise.stop_time,
        )
        self.context.waiter.add_fd(inbox.fileno(), "trainer")
        self.context.waiter.add_fd(guard.fileno(), "guard")
        now = time.monotonic()
        view, still = TrainerView.started(launch.launch, now), Stillness.started(now)
        return Trainer(launch, ProcessId.of(guard.pid), view, still, now + EVIDENCE_S)

    def hear(self, *, is_excused: bool) -> GuardedEnd | None:
        """Take in what the trainer says and does; its end, once nothing of it is left.

        `is_excused`: its silence says nothing, as this process did not run either.
        """
        trainer = self.run.state.live
        if trainer is None or self.guard is None or self.inbox is None:
            return None
        end = self.guard.poll()  # before its last words are read: they are all there then
        now = time.monotonic()
        trainer = replace(trainer.told(self.inbox.drain(), now), pid=self.guard.trainer_pid)
        if now >= trainer.sample_at:
            work = work_of(process.pid for process in children_tree(self.guard.pid))
            rss_bytes = 0 if trainer.pid is None else sample_tree(trainer.pid)
            trainer = trainer.sampled(work, rss_bytes, now, next_at=now + EVIDENCE_S)
        self.run.change(trainer=trainer.excused(now) if is_excused else trainer)
        return end

    def suspect(self, why: str) -> None:
        """Note that the trainer shows no progress, or, without a reason, that it does."""
        if why:
            self._record_silence("trainer_suspect", why)
        self.run.change(trainer=replace(self._trainer(), is_suspected=bool(why)))

    def stop(self, action: StopTrainer) -> None:
        """Ask the trainer to finish its step, seal a checkpoint and end; or kill a guard that does not."""
        trainer, events = self._trainer(), self.context.events
        assert self.guard is not None
        launch, is_hung = trainer.launch.launch, trainer.is_hung
        if action.kill_guard:
            events.record("guard_stuck", "error", launch=launch, pid=self.guard.pid)
            self.guard.kill()
        else:
            is_hung = bool(action.hung)
            if is_hung:
                self._record_silence("trainer_hung", action.hung)
            events.record("trainer_stop_asked", launch=launch, step=trainer.step)
            self.guard.stop()
        self.run.change(trainer=replace(trainer, stop_asked_at=time.monotonic(), is_hung=is_hung))

    def ended(self, ended: EndLaunch) -> None:
        """Put the end of a launch on record."""
        run, trainer, exit_ = self.run, self._trainer(), ended.exit
        self.close()
        run.accounts.interrupted()
        self.meters.restarts.labels(exit_.kind).inc()
        level = "info" if exit_.kind in ("finished", "stopped_as_asked") else "warning"
        words = {"launch": trainer.launch.launch, "exit_class": str(exit_.kind), "step": trainer.step}
        self.context.events.record("trainer_exited", level, message=exit_.detail, **words)
        doing = f"the trainer ended: {exit_.detail}"
        if ended.is_forgiven:
            with contextlib.suppress(StorageError):  # the next start grants one more launch anyway
                run.store.stopped()
            doing = f"stopped at step {trainer.step}: {exit_.detail}"
        run.change(exit=exit_, doing=doing)

    def close(self) -> None:
        """Let go of the handles; a trainer that still runs is asked to save and end."""
        if self.guard is not None:
            self.guard.stop()
        for handle in (self.guard, self.inbox):
            if handle is not None:
                self.context.waiter.remove_fd(handle.fileno())
                handle.close()
        self.guard = self.inbox = None

    def _trainer(self) -> Trainer:
        assert self.run.state.trainer is not None
        return self.run.state.trainer

    def _record_silence(self, event: str, why: str) -> None:
        trainer = self._trainer()
        assert self.guard is not None
        tree = [process.pid for process in children_tree(self.guard.pid)]
        self.context.events.record(
            event,
            "warning",
            launch=trainer.launch.launch,
            phase=trainer.view.phase,
            step=trainer.step,
            reason=why,
            processes=describe(tree),
        )
