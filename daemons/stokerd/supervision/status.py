"""What the train supervisor shows of its run: status, metrics, and the clock of its waits for data."""

from __future__ import annotations

import time

from stoker.kit.context import DaemonContext
from stoker.supervise.actions import CopyToMirror, MirrorJob
from stoker.supervise.report.metrics import Meters
from stoker.supervise.report.snapshot import run_progress, snapshot, status_text
from stoker.supervise.run.data_wait import waiting_words
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run
from stokerd.supervision.workers import Workers

PROGRESS_EVERY_S = 3600.0  # between two events run_progress


class RunBoard:
    """Status, metrics and words, all from one snapshot."""

    def __init__(self, context: DaemonContext, run: Run, workers: Workers, meters: Meters) -> None:
        self.context, self.run, self.workers, self.meters = context, run, workers, meters
        self.wait = run.accounts.wait
        self.report_at = time.monotonic() + PROGRESS_EVERY_S

    @property
    def is_ending(self) -> bool:
        """Whether the trainer is asked to end, or is about to be."""
        state = self.run.state
        stopping = self.context.stopping or bool(state.rollbacks)
        return state.live is not None and (state.live.stop_asked_at is not None or stopping)

    @property
    def doing(self) -> str:
        """What goes on, in words."""
        live = self.run.state.live
        if live is None:
            return self.run.state.doing
        if self.is_ending:
            return "waiting for the trainer to save and end"
        return waiting_words(self.run.planner.why) if live.view.waits else "training"

    def show(self) -> None:
        """Keep the clock of a wait for data, and show status and metrics."""
        state, run = self.run.state, self.run
        if state.live is None:
            waits = state.phase is Phase.WAITING
        else:
            waits = state.live.view.waits and not self.is_ending
        if self.wait.note(self.doing if waits else "", time.monotonic()):
            self.context.events.record(
                "data_wait",
                "warning",
                waiting_for=self.wait.what,
                since=self.wait.since,
                message="no step is made until it is there; stoker status shows what download and shards do",
            )
        live, config = state.live, self.context.pipeline.train
        shown = snapshot(
            run=config.run,
            steps=run.accounts.last_step,
            global_batch=config.global_batch,
            windows_per_s=run.accounts.headway.windows_per_s,
            doing=self.doing,
            wait=self.wait,
            ending=self.is_ending,
            record=run.store.record,
            live=live,
            checkpoint=run.newest,
            sealed=run.checkpoints.sealed,
            plan=run.planner.plan,
            why_no_more=run.planner.why,
            at_rest=state.is_at_rest,
            timeline=run.accounts.timeline,
            mirror=self._mirror(),
        )
        proven_at = run.checkpoints.proven_at
        self.meters.show(shown, None if proven_at is None else time.monotonic() - proven_at)
        if time.monotonic() >= self.report_at and (fields := run_progress(shown)):
            self.report_at = time.monotonic() + PROGRESS_EVERY_S
            self.context.events.record("run_progress", **fields)
        self.context.beat(shown, status_text(shown))

    def _mirror(self) -> dict[str, object] | None:
        run, job = self.run, self.workers.jobs.get(MirrorJob.slot)
        if run.mirror is None:
            return None
        copying = job.copy.step if isinstance(job, CopyToMirror) else None
        return run.mirror.status(copying)
