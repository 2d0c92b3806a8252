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
from stoker.supervise.actions import CopyToMirror, Enter, Pause, Wait
from stoker.supervise.decide import decide
from stoker.supervise.health.guarded import GuardedEnd
from stoker.supervise.report.snapshot import run_progress, snapshot, status_text
from stoker.supervise.run.gates import waiting_words
from stoker.supervise.state import Phase
from stokerd.common.alerts import Alerts
from stokerd.supervision.effects import Effects
from stokerd.supervision.observe import observe
from stokerd.supervision.run import load_run
from stokerd.supervision.workers import MIRROR, Workers

WAIT_S = 1.0
REAP_S = 2.0
STORAGE_S = 5.0  # between two tries at a state directory that cannot be used
COMPLAINT_S = 60.0
PROGRESS_EVERY_S = 3600.0  # between two run_progress events


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
        self.effects = Effects(self.run, self.workers)
        self._reap_at = 0.0
        self._report_at = time.monotonic() + PROGRESS_EVERY_S
        self._alerts = Alerts(context.events, COMPLAINT_S)

    def supervise(self) -> int:
        """Repeats cycles until an exit code is set, and returns it."""
        set_child_subreaper()
        self.workers.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            wait_s = self._cycle()
            self._show()
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
                self._show()  # status and metrics show the trainer's last messages
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

    def _show(self) -> None:
        """Writes status, metrics and heartbeat, and measures a wait for data."""
        run, state, live, now = self.run, self.run.state, self.run.state.live, time.monotonic()
        is_stopping = run.context.stopping or bool(state.rollbacks)
        is_ending = live is not None and (live.stop_asked_at is not None or is_stopping)
        waits, doing = state.phase is Phase.WAITING, state.doing
        if is_ending:
            doing = "waiting for the trainer to save and end"
        elif live is not None:
            waits = live.view.waits
            doing = waiting_words(run.planner.why) if waits else "training"
        wait = run.accounts.wait
        if wait.note(doing if waits else "", now):
            message = "no step is made until it is there; stoker status shows what download and shards do"
            words = {"waiting_for": wait.what, "since": wait.since, "message": message}
            run.events.record("data_wait", "warning", **words)
        job = self.workers.jobs.get(MIRROR)
        copying = job.copy.step if isinstance(job, CopyToMirror) else None
        train, proven_at = run.pipeline.train, run.checkpoints.proven_at
        shown = snapshot(
            run=train.run,
            steps=run.accounts.last_step,
            global_batch=train.global_batch,
            windows_per_s=run.accounts.headway.windows_per_s,
            doing=doing,
            wait=wait,
            ending=is_ending,
            record=run.store.record,
            live=live,
            checkpoint=run.newest,
            sealed=run.checkpoints.sealed,
            plan=run.planner.plan,
            why_no_more=run.planner.why,
            at_rest=state.is_at_rest,
            timeline=run.accounts.timeline,
            mirror=None if run.mirror is None else run.mirror.status(copying),
        )
        run.meters.show(shown, None if proven_at is None else now - proven_at)
        if now >= self._report_at and (fields := run_progress(shown)):
            self._report_at = now + PROGRESS_EVERY_S
            run.events.record("run_progress", **fields)
        run.context.beat(shown, status_text(shown))

    def close(self) -> None:
        """Ends the processes of this supervisor: workers at once, a trainer after it has saved."""
        self.effects.trainer.close()
        self.workers.stop()
        self.workers.stop_mirror()
