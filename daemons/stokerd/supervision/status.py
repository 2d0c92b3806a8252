"""What the train supervisor shows of its run, and the clock of its waits for data."""

from __future__ import annotations

import time
from typing import Any

from stoker.kit.context import DaemonContext
from stoker.supervise.report.hourly import EVERY_S, run_progress
from stoker.supervise.report.snapshot import snapshot, status_text
from stoker.supervise.run.data_wait import DataWait, waiting_words
from stokerd.supervision.accounts import RunAccounts
from stokerd.supervision.checkpoints import CheckpointDesk
from stokerd.supervision.cycle import Turns
from stokerd.supervision.launch import LaunchWatch


class RunBoard:
    """Status, metrics and words; the story tells it which launch goes on and when it gathers data."""

    def __init__(
        self, context: DaemonContext, turns: Turns, desk: CheckpointDesk, accounts: RunAccounts
    ) -> None:
        self.context, self.turns, self.config = context, turns, context.pipeline.train
        self.desk, self.accounts, self.planner = desk, accounts, accounts.planner
        self.wait = DataWait(context.pipeline.plan.hold)
        self.live: LaunchWatch | None = None  # the launch that goes on
        self.gathering = False  # data for the next launch
        self.report_at = time.monotonic() + EVERY_S
        self.at_rest = False  # finished, and nothing will be launched any more

    @property
    def ending(self) -> bool:
        """Whether the trainer is asked to end, or is about to be."""
        stopping = self.context.stopping or bool(self.turns.changed)
        return self.live is not None and (self.live.stop_asked or stopping)

    @property
    def doing(self) -> str:
        """What goes on, in words."""
        if self.live is None:
            return self.turns.doing
        if self.ending:
            return "waiting for the trainer to save and end"
        return waiting_words(self.planner.why) if self.live.view.waits else "training"

    def look(self) -> None:
        """Keep the clock of a wait for data; one that is longer than plan.hold is an event, once."""
        waits = self.gathering if self.live is None else self.live.view.waits and not self.ending
        if self.wait.note(self.doing if waits else "", time.monotonic()):
            self.context.events.record(
                "data_wait",
                "warning",
                waiting_for=self.wait.what,
                since=self.wait.since,
                message="no step is made until it is there; stoker status shows what download and shards do",
            )

    def launch_ended(self) -> None:
        """Count the trainer's last words, and show it no more."""
        self.show()
        self.live = None

    def show(self) -> tuple[dict[str, Any], str]:
        """The status snapshot and its one line; the metrics are set from the same."""
        live = self.live
        shown = snapshot(
            run=self.config.run,
            steps=self.accounts.last_step,
            global_batch=self.config.global_batch,
            windows_per_s=self.accounts.headway.windows_per_s,
            doing=self.doing,
            wait=self.wait,
            ending=self.ending,
            record=self.accounts.book.record,
            view=live.view if live else None,
            checkpoint=self.desk.newest,
            sealed=self.desk.sealed,
            plan=self.planner.plan,
            trainer_pid=live.trainer_pid if live else None,
            trainer_rss_bytes=live.rss_bytes if live else 0,
            at_rest=self.at_rest,
            timeline=self.accounts.timeline,
            mirror=self.desk.mirror.status() if self.desk.mirror else None,
        )
        self.desk.meters.show(shown, self.desk.age_s)
        if time.monotonic() >= self.report_at and (fields := run_progress(shown)):
            self.report_at = time.monotonic() + EVERY_S
            self.context.events.record("run_progress", **fields)
        return shown, status_text(shown)
