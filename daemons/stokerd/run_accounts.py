"""Where the run stands: plan and books against the newest proven checkpoint."""

from __future__ import annotations

from stoker.kit.context import DaemonContext
from stoker.plan.positions import START, Skip, left_after
from stoker.plan.timelines import Timelines, read_timelines, skips
from stoker.store.record import write_record
from stoker.supervise.checkpoints import Checkpoint
from stoker.supervise.horizon import consumed, finished_at
from stoker.supervise.planner import Planner
from stokerd.run_book import RunBook


class RunAccounts:
    """The run's record, plan and timelines made to agree, and consumed.json, which says what came of them."""

    def __init__(self, context: DaemonContext, book: RunBook, planner: Planner) -> None:
        self.events, self.config = context.events, context.pipeline.train
        self.run = context.layout.run(self.config.run)
        self.book, self.planner = book, planner

    def timelines(self) -> Timelines:
        """The run's rollbacks as they are on disk."""
        return read_timelines(self.run.timelines)

    def skips(self) -> tuple[Skip, ...]:
        """What the current timeline passes over."""
        return skips(self.timelines())

    def settle(self, checkpoint: Checkpoint | None) -> None:
        """Make record and plan agree with the newest proven checkpoint, or raise DataError."""
        if checkpoint is None:
            return
        if self.book.record is None:
            self.book.restore(checkpoint)
            self.events.record("run_record_restored", "warning", source=checkpoint.path.name)
        self.book.check_ours(checkpoint)
        if lost := self.planner.restore(checkpoint.plan()):
            self.events.record("plan_restored", "warning", entries=lost, source=checkpoint.path.name)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write consumed.json for a proven checkpoint."""
        books = consumed(
            self.config.run,
            checkpoint.path.name,
            checkpoint.body,
            self.planner.plan,
            finished=self.over(checkpoint),
            skips=self.skips(),
        )
        write_record(self.run.consumed, books)

    def over(self, checkpoint: Checkpoint | None) -> str | None:
        """Why the run is over at this checkpoint; None while it goes on."""
        return finished_at(
            checkpoint.step if checkpoint else 0,
            checkpoint.position if checkpoint else START,
            self.planner.plan,
            steps=self.config.horizon,
            global_batch=self.config.global_batch,
            skips=self.skips(),
        )

    def windows_left(self, checkpoint: Checkpoint | None) -> int:
        """Windows the plan still has to give from a checkpoint on."""
        return left_after(self.planner.plan, checkpoint.position if checkpoint else START, self.skips())
