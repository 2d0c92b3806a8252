"""The evaluation of proven checkpoints: beside training on processors, or between launches on the free GPU.

One runs at a time. evaluations.jsonl has a line for each that ended, failed or not, so a restart repeats only
what did not end, and a failure is not tried again for its checkpoint. It never stops training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stoker.config.schema_evaluation import SuiteSchedule
from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import NoMemory, Transient
from stoker.supervise.actions import Job
from stoker.supervise.evaluation.due import Course, due
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.state import Phase
from stokerd.supervision import policies
from stokerd.supervision.jobs.base import EVERY_PHASE, Message, Pool, RunActivity, Slice
from stokerd.supervision.jobs.evaluation_books import EvaluationBooks
from stokerd.supervision.jobs.gpus import STATE
from stokerd.supervision.run import Run

EVERY_S = 1.0  # between two looks for what is due
GONE = "the checkpoint was removed meanwhile; nothing is recorded"
SAMPLES_BYTES = 64 << 20  # of the samples of one evaluation
POOL: Pool = "evaluation"
KNOWN = EVERY_PHASE - {Phase.CLEANING, Phase.PROVING}  # of the history, which may change in these two
FREE = (Phase.WAITING, Phase.FINISHED)  # no trainer has the GPU


@dataclass(frozen=True)
class Subject:
    entry: SuiteSchedule
    checkpoint: Checkpoint

    @property
    def key(self) -> str:
        return f"{self.entry.name} {self.checkpoint.digest}"


@dataclass
class Progress:
    """What the log of evaluations does not say."""

    made: list[int] = field(default_factory=list)  # the steps of all checkpoints, pruned ones too
    short: set[str] = field(default_factory=set)  # evaluations that ran out of memory: half the batch
    due_at: float | None = None  # Unix time since when one is due or the last failed, and none has succeeded
    shown: dict[str, Any] = field(default_factory=dict)


BOOKS = Slice("evaluation_books", EvaluationBooks, resets=(Phase.WAITING,))  # a log may come from the mirror
PROGRESS = Slice("evaluations", lambda _: Progress(), Progress)


def _due(run: Run, where: Literal["cpu", "between"]) -> Iterator[Subject]:
    entries = run.pipeline.evaluations
    if not entries or run.store.record is None or run.context.stopping:
        return
    here = {one.step: one for name in run.checkpoints.proven_names if (one := run.checkpoints.get(name))}
    progress = PROGRESS.of(run)
    # A rollback took back those beyond the newest.
    progress.made = sorted({step for step in progress.made if step <= run.at.step} | here.keys())
    milestones = run.pipeline.train.milestones
    course = Course(progress.made, here, milestones, is_over=run.state.phase is Phase.FINISHED)
    books = BOOKS.of(run)
    progress.shown = books.shown()
    found = [Subject(entry, here[step]) for entry, step in due(entries, course, books.done())]
    needed = found + [job.subject for slot, job in run.jobs.items() if slot == POOL]
    is_stale = needed or (books.lines and books.lines[-1].invalid is not None)
    progress.due_at = (progress.due_at or time.time()) if is_stale else None
    run.checkpoints.evaluated = {one.checkpoint.path.name for one in needed}
    yield from (one for one in found if one.entry.where == where)


def _task(run: Run, job: Job) -> dict[str, Any]:
    entry, of, promote = job.subject.entry, job.subject.checkpoint, run.pipeline.promote
    has_gpu = entry.where == "between" and bool(STATE.of(run).cards.cards)
    is_short = job.subject.key in PROGRESS.of(run).short
    baseline = BOOKS.of(run).baseline(entry.name, of.digest)
    # The worker evaluates the baseline, too, where its suite has changed since.
    timeout_s = entry.timeout * (1 if baseline is None else 2)
    limits = {"threads": entry.threads, "memory_bytes": entry.memory, "timeout_s": timeout_s}
    return {
        **{"checkpoint": str(of.path), "digest": of.digest, "suite": str(entry.suite)},
        **dict.fromkeys(("scratch", "samples"), str(run.layout.evaluations)),
        **limits,
        "samples_bytes": SAMPLES_BYTES,
        "device": "cuda" if has_gpu else "cpu",
        "batch": max(1, entry.batch // 2) if is_short else entry.batch,
        "margins": promote.margins if promote is not None else {},
        "baseline": baseline,
    }


def _on_done(run: Run, job: Job, result: Message) -> None:
    if "refused" in result:
        _failed(run, job, result["refused"])
    baseline = run.checkpoints.get(run.promoted().get("checkpoint", ""))
    known = {one.digest: one for one in (baseline, job.subject.checkpoint) if one is not None}
    for found in result.get("evaluated", ()):
        if found["checkpoint_digest"] in known:
            _note(run, known[found["checkpoint_digest"]], found)


def _on_end(run: Run, job: Job, end: WorkerExit) -> None:
    """Takes in an end without a result: one cut short is due again, one short of memory once more."""
    is_stopped = end.code == Transient.exit_code or (end.code is None and end.signal is None)
    # A kill may be that of the kernel, whose memory was short.
    is_short = end.code == NoMemory.exit_code or end.kind in ("over_memory", "killed")
    if is_short and job.subject.key not in (short := PROGRESS.of(run).short):
        short.add(job.subject.key)
    elif not (is_stopped or run.context.stopping):
        _failed(run, job, end.reason(), end.wall_s)


def _failed(run: Run, job: Job, reason: str, seconds: float = 0.0) -> None:
    """Records a failure, by which the evaluation has ended for this checkpoint."""
    of, suite = job.subject.checkpoint, job.subject.entry.name
    nothing = {"checkpoint_digest": of.digest, "suite": suite, "suite_digest": "", "metrics": {}}
    _note(run, of, {**nothing, "invalid": reason, "seconds": seconds})


def _note(run: Run, of: Checkpoint, found: Mapping[str, Any]) -> None:
    """Records results, and what follows from them; nothing of a checkpoint that is gone meanwhile."""
    there, about = run.checkpoints.get(of.path.name), {"step": of.step, "suite": found["suite"]}
    if there is None or there.digest != of.digest or not of.path.exists():
        run.events.record("evaluation_failed", level="info", **about, message=GONE)
        return
    than, (body, worse) = run.promoted().get("step"), BOOKS.of(run).judge(of, found)
    if worse:  # before the line: after a kill in between it is evaluated again, and held twice
        _hold(run, f"step {of.step} is worse than the promoted step {than}: {', '.join(worse)}")
    BOOKS.of(run).add(body)
    run.timings.evaluation.observe(found["seconds"])
    if found["invalid"]:
        run.counted.evaluation_failures += 1
        run.events.record("evaluation_failed", **about, message=found["invalid"])
        return
    PROGRESS.of(run).due_at = None
    run.events.record(
        "checkpoint_evaluated", **about, seconds=found["seconds"], promotion=body["promotion"]["verdict"]
    )
    if worse:
        run.events.record("evaluation_regressed", **about, metrics=worse, than=than)


def _hold(run: Run, why: str) -> None:
    """Pauses or halts the run, as an operator would, where `promote.on_regression` says so."""
    policy, record = run.pipeline.promote, run.store.begun
    how = policy.on_regression if policy is not None and not (record.is_over or record.held) else "event"
    if how == "pause":
        run.store.pause(f"promote.on_regression ({why})")
        run.events.record("run_paused", by="promote.on_regression", step=run.at.step)
    elif how == "halt":
        policies.halt(run, why)


def _activity(kind: str, where: Literal["cpu", "between"], phases: Collection[Phase]) -> RunActivity:
    return RunActivity(
        kind=kind,
        module="stoker.evaluation.worker",
        silent_s=math.inf,  # an export or a pass of a large model takes long: `timeout` bounds it
        pool=POOL,  # of one kind and the other, one runs at a time
        task=_task,
        on_done=_on_done,
        on_end=_on_end,
        due=lambda run: _due(run, where),
        due_in=phases,
        every_s=EVERY_S,
        awaited_in=FREE if where == "between" else (Phase.FINISHED,),
        ends_in=(),
        slices=(BOOKS, PROGRESS),
    )


def shown(run: Run) -> dict[str, Any]:
    """Returns what status and metrics show, without a look at the disk."""
    progress = PROGRESS.of(run)
    return {**progress.shown, "due_at": progress.due_at} if run.pipeline.evaluations else {}


EVALUATION = _activity("evaluation", "cpu", KNOWN)
EVALUATION_BETWEEN = _activity("evaluation_between", "between", FREE)
