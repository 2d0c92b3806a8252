"""The only writer of a run: carries out actions, each record durable before its event."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from stoker.checkpoints.mirror.layout import waiting
from stoker.kit.context import DaemonContext
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process.process_id import ProcessId, processes_with_environment, signal_process
from stoker.store.errors import DataError, LockHeld, StorageError
from stoker.supervise import actions as do
from stoker.supervise.actions import Action, MirrorJob
from stoker.supervise.health.leftovers import Leftovers
from stoker.supervise.mirroring import next_job
from stoker.supervise.report.metrics import Meters
from stoker.supervise.state import Phase
from stokerd.supervision import books
from stokerd.supervision.activities import ACTIVITIES, failed
from stokerd.supervision.mirror import MirrorEffects
from stokerd.supervision.rollback import Rollbacks
from stokerd.supervision.run import Run
from stokerd.supervision.trainer import TrainerControl
from stokerd.supervision.workers import Workers

KEEP_S = 1.0  # between two looks at checkpoints and plan while the trainer runs
KEEP_WAITING_S = 0.1  # the same before a launch, where each event is a reason to look
HOLD_OUT_RETRY_S = 10.0
HANGS = "a worker of an earlier supervisor hangs in a file system that does not answer; look at the mount"


class Effects:
    """Carries out actions; holds what cannot be written down: the trainer's lock and its handles."""

    def __init__(self, context: DaemonContext, run: Run, workers: Workers, meters: Meters) -> None:
        self.events, self.run, self.workers, self.meters = context.events, run, workers, meters
        self.rollbacks = Rollbacks(run, context.events)
        self.mirror = MirrorEffects(run, context.events, meters)
        self.trainer = TrainerControl(context, run, meters)
        self.lock: Lock | None = None

    def apply(self, *actions: Action) -> None:
        """Carry out actions in order."""
        for action in actions:
            self._apply(action)

    @singledispatchmethod
    def _apply(self, action: Any) -> None:
        """An action of the mirror; the others are registered below, each by its type."""
        self.mirror.apply(action)

    @_apply.register
    def _wait(self, action: do.Wait) -> None:
        self.run.change(doing=action.doing or self.run.state.doing)

    @_apply.register
    def _pause(self, action: do.Pause) -> None:
        state = replace(self.run.state, failures=self.run.state.failures + action.is_failure)
        self.run.state = state.paused(action.seconds, action.doing, time.monotonic())

    @_apply.register
    def _end(self, action: do.End) -> None:
        run, why = self.run, action.failed
        run.checkpoints.note_sealed(run.accounts.history())
        run.change(exit_code=action.exit_code)
        if why and run.store.record is None:
            raise DataError(why)
        if why:
            run.store.change(state="failed", reason=why)
            run.change(doing=f"failed: {why}")
            self.events.record("run_failed", "error", message=why, exit_code=action.exit_code)

    # Phases

    @_apply.register
    def _entered(self, action: do.Enter) -> None:
        self._enter(action.phase)

    def _enter(self, phase: Phase) -> None:
        """The one place where the phase changes."""
        run = self.run
        run.state = run.state.entered(phase, time.monotonic())
        if phase is Phase.WAITING:
            run.data.mended = run.data.repairs.mended
        if phase in (Phase.CLEANING, Phase.FINISHED):
            self._release_lock()
        if phase is Phase.CLEANING:
            mirror_job = self.workers.jobs.get(MirrorJob.slot)
            if isinstance(mirror_job, MirrorJob) and mirror_job.is_awaited:
                self._stop_mirror()  # what it writes is about to be swept
            self.workers.stop()

    def _release_lock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def leftovers(self) -> Leftovers:
        """What is left of an earlier launch; where nothing is, the trainer's lock is taken."""
        run = self.run
        with contextlib.suppress(LockHeld):
            purpose = f"launch of run {run.pipeline.train.run}"
            self.lock = Lock.acquire(run.layout.trainer_lock, purpose=purpose)
        is_rank0_held = read_holder(run.layout.rank0_lock) is not None
        left = Leftovers(self.lock is None, is_rank0_held, tuple(self._processes()))
        if not left.none:
            self._release_lock()
        return left

    def _processes(self) -> list[ProcessId]:
        return processes_with_environment("STOKER_RUN_DIR", str(self.run.layout.root))

    @_apply.register
    def _clear_leftovers(self, action: do.ClearLeftovers) -> None:
        processes = self._processes()
        if not self.run.state.is_reported:
            guarded = read_holder(self.run.layout.trainer_lock) is not None
            pids = [process.pid for process in processes]
            self.events.record("leftovers_found", "warning", pids=pids, guarded=guarded)
        for process in processes if action.signal else ():
            signal_process(process, getattr(signal, f"SIG{action.signal}"))
        self.run.change(is_reported=True, is_term_sent=self.run.state.is_term_sent or bool(action.signal))

    @_apply.register
    def _take_up(self, _: do.TakeUpRollbacks) -> None:
        run = self.run
        self.rollbacks.take_up()
        run.checkpoints.note_sealed(run.accounts.history())
        for name in run.checkpoints.before_selection():
            self.events.record("leftover_removed", path=f"checkpoints/{name}")
        self.run.change(is_taken_up=True, rollbacks=self.rollbacks.pending())

    @_apply.register
    def _make_rollback(self, action: do.MakeRollback) -> None:
        run = self.run
        self._stop_mirror()
        self.workers.stop()  # whatever reads checkpoints: they are about to be moved
        if self.rollbacks.make(action.request):
            run.checkpoints.note_sealed(run.accounts.history())
            self.run.change(trainer=None, exit=None, is_settled=False)
        left = tuple(one for one in run.state.rollbacks if one != action.request)
        self.run.change(rollbacks=left, look=run.state.look if run.state.look == "done" else "")

    @_apply.register
    def _settle(self, _: do.Settle) -> None:
        run = self.run
        run.accounts.settle(run.newest)
        books.prune_and_keep(run, self.events)
        run.change(is_settled=True, is_heldout_seen=run.mirror is None, resume=run.at.path.name)

    @_apply.register
    def _answer_end(self, action: do.AnswerEnd) -> None:
        run = self.run
        run.store.change(fruitless=action.fruitless, best_step=action.best_step)
        # Answered once it is on disk: a full disk must not make a failure forgotten.
        failures = 0 if action.has_progressed else run.state.failures
        self.run.change(exit=None, trainer=None, failures=failures)
        if action.doubts_data:
            run.data.doubt(run.at.position, run.accounts.skips())

    # Jobs

    @_apply.register
    def _started(self, action: do.Start) -> None:
        self.start(action.job)
        self.run.change(doing=action.doing)

    def start(self, job: do.Job) -> None:
        """Start a job's worker; the worker on warm leaves what it does."""
        run, activity = self.run, ACTIVITIES[type(job)]
        if isinstance(job, MirrorJob):
            self._stop_mirror()
        if not self.workers.is_clear(job):
            self.apply(failed(job, HANGS))
            return
        self.workers.start(job, activity.module, activity.task(run, job), silent_s=activity.silent_s(job))

    def _stop_mirror(self) -> None:
        if self.run.mirror is not None and MirrorJob.slot in self.workers.jobs:
            self.workers.stop_mirror()
            self.run.mirror.look_at = 0.0  # what was under way may have come to its end

    def mirror_beside(self) -> None:
        """Start what is to be done on warm now; trouble with it is only reported."""
        run, mirror, now = self.run, self.run.mirror, time.monotonic()
        if mirror is None or run.store.record is None or now < mirror.tend_at:
            return
        mirror.tend_at = now + KEEP_S
        try:
            seen = run.checkpoints.to_mirror(), run.accounts.history(), run.checkpoints.policy
            mirror.waiting = len(waiting(seen[0], mirror.copies, *seen[1:]))
            if MirrorJob.slot in self.workers.jobs:
                return
            if (job := next_job(mirror, *seen, now)) is not None:
                self.start(job)
            elif mirror.trouble is not None and now >= mirror.retry_at:
                self.mirror.worked(mirror.trouble_doing)  # what failed is no longer wanted
        except StorageError as problem:
            self.apply(do.MirrorFailed(do.ListMirror(), str(problem)))

    @_apply.register
    def _checkpoint_proved(self, proved: do.CheckpointProved) -> None:
        run, path = self.run, f"checkpoints/{proved.name}"
        if proved.verdict == "proven" and proved.body is not None:
            if run.checkpoints.proven(proved.name, proved.body, proved.digest, time.monotonic()):
                self.events.record("checkpoint_proven", path=path, step=proved.body["step"])
        elif proved.verdict == "invalid":
            self._reject(proved.name, proved.reason)
        else:
            run.checkpoints.unreadable(proved.name, time.monotonic())
            message = "neither trusted nor thrown away, and tried again; look at the disk"
            self.events.record(
                "checkpoint_unreadable", "warning", path=path, reason=proved.reason, message=message
            )
        if run.state.phase is Phase.PROVING:
            self.run.change(proofs={**run.state.proofs, proved.name: proved.verdict})

    def _reject(self, name: str, reason: str) -> None:
        self._stop_mirror()  # it may read what is about to be moved
        moved = self.run.checkpoints.reject(name, reason)
        self.meters.quarantined.inc()
        self.events.record(
            "checkpoint_quarantined",
            "warning",
            path=f"checkpoints/{name}",
            reason=reason,
            moved_to=str(moved.place),
            dropped=list(moved.dropped),
            message="it is not whole and is never resumed from; the one before it is used",
        )
        self.run.change(has_rejected=True)

    @_apply.register
    def _sets_proved(self, action: do.SetsProved) -> None:
        self.run.data.proved(action)

    @_apply.register
    def _heldout_copied(self, action: do.HeldoutCopied) -> None:
        if action.problem:
            self.events.record("heldout_failed", "warning", reason=action.problem)
            self.run.change(heldout_retry_at=time.monotonic() + HOLD_OUT_RETRY_S)
        else:
            self.run.change(is_heldout_copied=True, heldout=action.heldout)

    # The run

    @_apply.register
    def _keep_books(self, _: do.KeepBooks) -> None:
        now, waits = time.monotonic(), self.run.state.phase is Phase.WAITING
        self.run.change(keep_at=now + (KEEP_WAITING_S if waits else KEEP_S))
        for job in books.keep(self.run, self.events, now):
            if job.slot not in self.workers.jobs:
                self.start(job)

    @_apply.register
    def _launch(self, _: do.LaunchTrainer) -> None:
        assert self.lock is not None
        trainer, self.lock = self.trainer.launch(self.lock), None
        self._enter(Phase.TRAINING)
        self.run.change(trainer=trainer, doing="training")

    @_apply.register
    def _suspect(self, action: do.Suspect) -> None:
        self.trainer.suspect(action.why)

    @_apply.register
    def _stop_trainer(self, action: do.StopTrainer) -> None:
        self.trainer.stop(action)

    @_apply.register
    def _end_launch(self, action: do.EndLaunch) -> None:
        self.trainer.ended(action)

    @_apply.register
    def _finish(self, action: do.Finish) -> None:
        run, record, why = self.run, self.run.store.record, action.why
        if record is not None and (record.state, record.finished) != ("finished", why):
            run.store.change(state="finished", finished=why, reason=None, fruitless=0)
            self.events.record("run_finished", message=why, step=run.at.step)
        self._enter(Phase.FINISHED)
        self.run.change(doing=f"finished: {why}", trainer=None, exit=None)

    @_apply.register
    def _rest(self, _: do.Rest) -> None:
        books.prune_and_keep(self.run, self.events)
        self.run.change(is_at_rest=True)
