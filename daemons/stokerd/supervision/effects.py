"""The only writer of a run: carries out the decided actions, each record durable before its event."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

from stoker.kit.handover import Handover
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process import processes_with_environment, signal_process
from stoker.store.errors import DataError, LockHeld, Transient
from stoker.supervise import actions as do
from stoker.supervise.state import Phase
from stokerd.supervision import policies
from stokerd.supervision.jobs.runner import Jobs
from stokerd.supervision.keep import keep, note_wants
from stokerd.supervision.requests import Requests
from stokerd.supervision.run import Run
from stokerd.supervision.trainer.control import TrainerControl
from stokerd.supervision.trainer.watches import Watches

KEEP_S = 1.0  # between two checks of the plan while the trainer runs
START_AGAIN_S = 2.0  # before a trainer that could not be started is tried again
KEEP_WAITING_S = 0.1  # the same before a launch, where each event may open a gate


class Effects:
    """Carries out actions; holds the facts that no record can: the trainer's lock and its handles."""

    def __init__(self, run: Run) -> None:
        self.run, self.jobs = run, Jobs(run)
        self.requests = Requests(run)
        self.rollbacks = self.requests.rollbacks
        self.trainer = TrainerControl(run)
        self.watches = Watches(run)
        self.lock: Lock | None = None
        self._effects: dict[type[do.Action], Callable[[Any], None]] = {
            do.Wait: self._wait,
            do.Pause: self._pause,
            do.Enter: lambda action: self._enter(action.phase),
            do.ClearLeftovers: self._clear_leftovers,
            do.MakeRollback: self._make_rollback,
            do.Start: self._start,
            do.Settle: self._settle,
            do.AnswerEnd: self._answer_end,
            do.KeepBooks: self._keep_books,
            do.LaunchTrainer: self._launch,
            do.Suspect: self.trainer.suspect,
            do.StopTrainer: self.trainer.stop,
            do.EndLaunch: self.trainer.ended,
            do.Halt: lambda action: policies.halt(self.run, action.reason),
            do.Finish: self._finish,
            do.Rest: self._rest,
            do.End: self._end,
        }

    def apply(self, *actions: do.Action) -> None:
        for action in actions:
            self._effects[type(action)](action)

    # Reload

    @property
    def can_be_handed_over(self) -> bool:
        """Whether the guard of a launch, if there is one, holds the trainer's lock by itself."""
        return self.trainer.guarded is None or self.trainer.guarded.is_begun

    def adopt(self, handover: Handover) -> None:
        """Goes on with the trainer of this process's image before."""
        self.jobs.adopt(handover.work.get("jobs", {}))  # that an older version does not hand over
        self.trainer.adopt(handover)
        if self.run.state.live is not None:
            note_wants(self.run)  # before consumed.json is written, by which sets leave hot

    # Phases

    def _wait(self, action: do.Wait) -> None:
        self.run.change(doing=action.doing or self.run.state.doing)

    def _pause(self, action: do.Pause) -> None:
        self.run.state = self.run.state.paused(action.seconds, action.doing, time.monotonic())

    def _enter(self, phase: Phase) -> None:
        """Changes the phase; no other function does."""
        self.run.state = self.run.state.entered(phase, time.monotonic())
        self.run.note_time()
        if phase in (Phase.CLEANING, Phase.HALTED, Phase.FINISHED):
            self._release_lock()
        self.jobs.entered(phase)
        if phase is Phase.PROVING:
            self.rollbacks.take_up()
            policies.set_aside(self.run)
            self.run.keep_milestones()
            self.run.checkpoints.note_sealed(self.run.accounts.history())
            for name in self.run.checkpoints.before_selection():
                self.run.events.record("leftover_removed", path=f"checkpoints/{name}")

    def _release_lock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def leftovers(self) -> do.Leftovers | None:
        """Returns the leftovers of an earlier launch; without any, takes the trainer's lock, returns None."""
        layout = self.run.layout
        with contextlib.suppress(LockHeld):
            self.lock = Lock.acquire(layout.trainer_lock, purpose=f"launch of run {layout.root.name}")
        is_rank0_held = read_holder(layout.rank0_lock) is not None
        processes = tuple(processes_with_environment("STOKER_RUN_DIR", str(layout.root)))
        if self.lock is not None and not is_rank0_held and not processes:
            return None
        left = do.Leftovers(self.lock is None, is_rank0_held, processes)
        self._release_lock()
        return left

    def _clear_leftovers(self, action: do.ClearLeftovers) -> None:
        left, state = action.left, self.run.state
        if not state.is_reported:
            pids = [process.pid for process in left.processes]
            self.run.events.record("leftovers_found", pids=pids, guarded=left.is_guarded)
        for process in left.processes if action.signal else ():
            signal_process(process, getattr(signal, f"SIG{action.signal}"))
        self.run.change(is_reported=True, is_term_sent=state.is_term_sent or bool(action.signal))

    def _finish(self, action: do.Finish) -> None:
        run, record, why = self.run, self.run.store.record, action.why
        if record is not None and (record.state, record.finished) != ("finished", why):
            run.store.change(
                state="finished", finished=why, reason=None, halted=None, paused=None, fruitless=0
            )
            if why == "early_stop":
                found = run.accounts.standstill(run.at)
                run.events.record("stopped_early", step=run.at.step, **vars(found))
            run.events.record("run_finished", message=why, step=run.at.step)
        self._enter(Phase.FINISHED)
        run.change(doing=f"finished: {why}", trainer=None, exit=None)

    def _rest(self, _: do.Rest) -> None:
        self.run.prune_and_keep()
        self.run.change(is_at_rest=True)

    def _end(self, action: do.End) -> None:
        run, why = self.run, action.failed
        run.checkpoints.note_sealed(run.accounts.history())
        run.change(exit_code=action.exit_code)
        if why and run.store.record is None:
            raise DataError(why)
        if why:
            run.store.change(state="failed", reason=why)
            run.change(doing=f"failed: {why}")
            run.events.record("run_failed", message=why, exit_code=action.exit_code)

    # Proving

    def _make_rollback(self, action: do.MakeRollback) -> None:
        run = self.run
        self.jobs.stop()  # they may read checkpoints, which the rollback moves
        if self.rollbacks.make(action.request):
            run.checkpoints.note_sealed(run.accounts.history())
            run.change(trainer=None, exit=None, is_settled=False)
        elif not action.request:
            run.change(is_decay_kept=True)
        left = tuple(one for one in run.state.rollbacks if one != action.request)
        run.change(rollbacks=left, look=run.state.look if run.state.look == "done" else "")

    def _settle(self, _: do.Settle) -> None:
        run = self.run
        run.accounts.settle(run.newest)
        run.goodput.settled(run.at)
        run.prune_and_keep()
        run.change(is_settled=True, resume=run.at.path.name)

    def _answer_end(self, action: do.AnswerEnd) -> None:
        run = self.run
        policies.answer(run, action)
        # The end is cleared only after the record is on disk: a full disk must not lose a failure.
        failures = 0 if action.has_progressed else run.state.failures + 1
        run.change(exit=None, trainer=None, failures=failures)
        if action.doubts_data:
            run.data.doubt(run.at.position, run.accounts.skips())

    # Jobs

    def _start(self, action: do.Start) -> None:
        self.jobs.start(action.job)
        self.run.change(doing=action.doing)

    # The run

    def _keep_books(self, _: do.KeepBooks) -> None:
        now, waits = time.monotonic(), self.run.state.phase is Phase.WAITING
        # Set first: on a full disk `keep` fails, and must not run again at each message of the trainer.
        self.run.change(keep_at=now + (KEEP_WAITING_S if waits else KEEP_S))
        for job in keep(self.run):
            if self.jobs.is_free(job.kind):
                self.jobs.start(job)

    def _launch(self, _: do.LaunchTrainer) -> None:
        assert self.lock is not None
        try:
            trainer, self.lock = self.trainer.launch(self.lock), None
        except Transient as problem:
            self.requests.alerts.raise_("worker_not_started", reason=str(problem))
            self._pause(do.Pause(START_AGAIN_S, f"{problem}; trying"))
            return
        self.run.change(trainer=trainer, doing="training")
        self._enter(Phase.TRAINING)
        self.run.goodput.launched(trainer.launch)
