"""One supervised run: the supervisor's position, and what it knows of record, plan and checkpoints."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from typing import Any

from stoker.config.schema import Pipeline
from stoker.kit.context import DaemonContext
from stoker.store.files import opened
from stoker.store.layout import TRAIN_SUPERVISOR, RunLayout
from stoker.supervise.mirror.inventory import BEGINNING, Checkpoint, Checkpoints
from stoker.supervise.mirror.state import MirrorState
from stoker.supervise.run.planner import Planner
from stoker.supervise.state import RunState
from stokerd.supervision.accounts import Accounts
from stokerd.supervision.data import DataReadiness
from stokerd.supervision.run_store import RunStore


@dataclass
class Run:
    """Facts only: `Effects` changes them and what is on disk."""

    pipeline: Pipeline
    state: RunState
    store: RunStore
    checkpoints: Checkpoints
    mirror: MirrorState | None  # None where checkpoints are not mirrored
    planner: Planner
    accounts: Accounts
    data: DataReadiness

    def change(self, **changes: Any) -> None:
        """Change the supervisor's position."""
        self.state = replace(self.state, **changes)

    @property
    def layout(self) -> RunLayout:
        return self.pipeline.layout.run(self.pipeline.train.run)

    @property
    def newest(self) -> Checkpoint | None:
        """The newest proven checkpoint."""
        return self.checkpoints.newest

    @property
    def at(self) -> Checkpoint:
        """The same, or the beginning."""
        return self.newest or BEGINNING

    def run_id(self, *, or_of_newest: bool = False) -> str | None:
        """The run's id, if its record or, where allowed, its newest checkpoint is there."""
        if self.store.record is not None:
            return self.store.record.identity.run_id
        return str(self.newest.body["run_id"]) if or_of_newest and self.newest else None

    def logs(self) -> list[str]:
        """What else of the run should outlive its disk: rows and launches, for the audit and a replay."""
        return [str(self.layout.metrics), str(self.layout.launches)]


def jitter() -> float:
    """What a delay is multiplied with, so that many do not come back at once."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret


def load_run(context: DaemonContext) -> Run:
    """The run as its files have it; makes its directories, and an empty plan for a new one."""
    pipeline, events = context.pipeline, context.events
    run = pipeline.layout.run(pipeline.train.run)
    run.create()
    for log in (run.plan, run.timelines):
        with opened(log, os.O_WRONLY | os.O_CREAT):
            pass
    requests = pipeline.layout.requests(TRAIN_SUPERVISOR)
    for directory in (run.checkpoints, pipeline.layout.sources, pipeline.layout.datasets, requests):
        context.waiter.watch(directory)
    store = RunStore(pipeline)
    store.read()
    run_id = store.record.identity.run_id if store.record else None
    planner = Planner(pipeline.layout, pipeline.dataset.name, run.plan, run_id)
    accounts = Accounts(context, store, planner)
    is_mirrored = pipeline.warm_layout is not None and pipeline.train.checkpoint.mirror
    return Run(
        pipeline,
        RunState(),
        store,
        Checkpoints(pipeline),
        MirrorState(run.mirror, pipeline.layout.quarantine) if is_mirrored else None,
        planner,
        accounts,
        DataReadiness(pipeline, events, planner, accounts.reach),
    )
