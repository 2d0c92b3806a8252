"""One supervised run: the supervisor's position in it, and its record, plan, data and checkpoints."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.config.schema import Pipeline
from stoker.kit.context import DaemonContext
from stoker.kit.events import Events
from stoker.kit.metrics import SAVE_BUCKETS, STEP_BUCKETS, Metrics
from stoker.store.errors import UsageError
from stoker.store.files import opened
from stoker.store.layout import TRAIN_SUPERVISOR, RunLayout
from stoker.store.record import read_or_set_aside
from stoker.supervise.actions import Job
from stoker.supervise.evaluation.promotion import in_force
from stoker.supervise.health.trainer_protocol import CheckpointNotice
from stoker.supervise.mirror.inventory import BEGINNING, Checkpoint, Checkpoints, MirrorState
from stoker.supervise.run.horizon import milestones
from stoker.supervise.run.launch_record import read_launches
from stoker.supervise.run.planner import Planner
from stoker.supervise.state import Phase, RunState, read_state
from stoker.supervise.trainer_kind import BUILT_IN, TrainerKind, kind_of
from stokerd.supervision.books.accounts import Accounts
from stokerd.supervision.books.data import DataReadiness
from stokerd.supervision.books.goodput import GoodputBooks
from stokerd.supervision.books.run_store import RunStore


@dataclass
class Counted:
    """What has happened since the supervisor started, for the metrics; `restarts` by class of end."""

    restarts: Counter[str] = field(default_factory=Counter)
    hooks: Counter[str] = field(default_factory=Counter)  # ended commands of train.on_checkpoint, by result
    ends: Counter[str] = field(default_factory=Counter)  # of workers, by kind of job and how
    mirror_failures: int = 0
    evaluation_failures: int = 0
    quarantined: int = 0
    trained_tokens: int = 0
    nonfinite: int = 0
    unsaved: tuple[int, int, str] = (0, -1, "")  # timeline and step where a checkpoint failed last, and why
    saves_refused: int = 0  # the newest ones of an external trainer, in a row
    save_refused: str = ""  # the path of the last of them, and why
    last_step_at: float | None = None  # Unix time


class Timings:
    """Histograms of seconds, since the supervisor started."""

    def __init__(self, metrics: Metrics) -> None:
        self.step = metrics.histogram("train_step_seconds", "Seconds of a training step.", STEP_BUCKETS)
        self.save = metrics.histogram(
            "checkpoint_save_seconds", "Seconds that the trainer spent saving a checkpoint.", SAVE_BUCKETS
        )
        self.hook = metrics.histogram(
            "train_hook_seconds", "Seconds of a command of train.on_checkpoint.", SAVE_BUCKETS
        )
        self.evaluation = metrics.histogram("eval_seconds", "Seconds of an evaluation.", SAVE_BUCKETS)
        self.proof = metrics.histogram(
            "checkpoint_proof_seconds", "Seconds of a checkpoint's proof.", SAVE_BUCKETS
        )


@dataclass
class Run:
    """The objects of one run; `Effects` and the results of jobs change `state`, the supervisor's position."""

    context: DaemonContext
    state: RunState
    store: RunStore
    checkpoints: Checkpoints
    mirror: MirrorState | None  # None where checkpoints are not mirrored
    accounts: Accounts
    data: DataReadiness
    timings: Timings
    goodput: GoodputBooks
    counted: Counted = field(default_factory=Counted)
    jobs: dict[str, Job] = field(default_factory=dict)  # running, by slot
    slices: dict[str, Any] = field(default_factory=dict)  # the jobs' own state, by name
    kind: TrainerKind = BUILT_IN
    told: list[CheckpointNotice] = field(default_factory=list)  # of the trainer, for the job that seals

    def change(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def note_time(self) -> None:
        """Counts the time until now for what it was spent on; from now on it is for the present state."""
        job = self.jobs.get("evaluation")
        evaluates = job is not None and job.subject.entry.where == "between"
        self.goodput.refresh(self.state, self.store.record, self.at.step, evaluates=evaluates)

    @property
    def pipeline(self) -> Pipeline:
        return self.context.pipeline

    @property
    def events(self) -> Events:
        return self.context.events

    @property
    def layout(self) -> RunLayout:
        return self.pipeline.layout.run(self.pipeline.train.run)

    @property
    def planner(self) -> Planner:
        return self.accounts.planner

    @property
    def newest(self) -> Checkpoint | None:
        return self.checkpoints.newest

    @property
    def at(self) -> Checkpoint:
        """The newest proven checkpoint, or the run's beginning where there is none."""
        return self.newest or BEGINNING

    def handed_over(self) -> dict[str, Any]:
        """Returns what this process's next image goes on from; without a trainer that is cleaning."""
        now = time.monotonic()
        state = self.state if self.state.live is not None else self.state.entered(Phase.CLEANING, now)
        return {
            "state": state.record(),
            "checkpoints": self.checkpoints.handed_over(),
            "counted": vars(self.counted),
        }

    def adopt(self, body: Mapping[str, Any]) -> None:
        """Goes on from what this process's image before has `handed_over`."""
        self.state = read_state(body["state"])
        if (trainer := self.state.trainer) is not None:  # an older version hands it over by another name
            launch = replace(trainer.launch, reads_output=not self.kind.follows_plan)
            self.change(trainer=replace(trainer, launch=launch))
        self.checkpoints.adopt(body["checkpoints"])
        counted = body["counted"]
        counters = {name: Counter(counted.get(name, {})) for name in ("restarts", "hooks", "ends")}
        self.counted = Counted(**{**counted, **counters})
        self.keep_milestones()

    def keep_milestones(self) -> None:
        """Makes retention keep where the decays of the recorded launches begin, and what is promoted."""
        promoted = {record["step"]} if (record := self.promoted()) else set()
        self.checkpoints.keep_also(milestones(read_launches(self.layout.launches)[0]) | promoted)

    def promoted(self) -> Mapping[str, Any]:
        """Returns promoted.json; {} without one, and where a rollback went back past its checkpoint."""
        record = read_or_set_aside(self.layout.promoted, self.pipeline.layout.quarantine)
        return record if record and in_force(record, self.accounts.history()) else {}

    def prune_and_keep(self) -> None:
        """Removes superfluous checkpoints, which makes room, and brings consumed.json up to date."""
        for step in self.checkpoints.prune():
            self.events.record("checkpoint_pruned", step=step)
        self.accounts.keep(self.at)

    def run_id(self, *, or_of_newest: bool = False) -> str | None:
        """Returns the run's id from its record or, with `or_of_newest`, from its newest proven checkpoint."""
        if self.store.record is not None:
            return self.store.record.identity.run_id
        return str(self.newest.body["run_id"]) if or_of_newest and self.newest else None


def load_run(context: DaemonContext) -> Run:
    """Returns the run that is on disk; for a new run creates its directories and an empty plan."""
    pipeline, kind = context.pipeline, kind_of(context.pipeline)
    if context.until is not None and not kind.follows_plan:
        raise UsageError("an external trainer cannot be told where to stop: leave --until out")
    layout = pipeline.layout.run(pipeline.train.run)
    layout.create()
    for log in (layout.plan, layout.timelines):
        with opened(log, os.O_WRONLY | os.O_CREAT):
            pass
    requests = pipeline.layout.requests(TRAIN_SUPERVISOR)
    for directory in (layout.checkpoints, pipeline.layout.sources, pipeline.layout.datasets, requests):
        context.waiter.watch(directory)
    store = RunStore(pipeline)
    if store.is_begun_again:
        context.events.record("run_resumed", message="the pipeline file has changed", was="finished")
    run_id = store.record.identity.run_id if store.record else None
    planner = Planner(pipeline.layout, pipeline.dataset.name, layout.plan, run_id)
    accounts = Accounts(context, kind, store, planner)
    is_mirrored = pipeline.warm_layout is not None and pipeline.train.checkpoint.mirror
    return Run(
        context,
        RunState(Phase.CLEANING, time.monotonic()),
        store,
        Checkpoints(pipeline),
        MirrorState(layout.mirror, pipeline.layout.quarantine) if is_mirrored else None,
        accounts,
        DataReadiness(pipeline, context.events, planner, kind.gate_wants(pipeline)),
        Timings(context.metrics),
        GoodputBooks(
            layout, pipeline.layout.quarantine, context.events, is_reloaded=context.handover is not None
        ),
        kind=kind,
    )
