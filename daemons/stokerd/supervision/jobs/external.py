"""The checkpoints of an external trainer: one worker at a time seals and restores them.

The daemon itself never touches the trainer's directories, which may hang. told.json keeps the paths that the
trainer told of until they are sealed: a later supervisor looks at them first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from stoker.checkpoints.external.step_reports import StepReport, StepReports
from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY, checkpoint_name
from stoker.checkpoints.quarantine import quarantined
from stoker.kit.events import Alerts
from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import ConfigError, DataError, StorageError
from stoker.store.record import new_id, read_or_set_aside, write_record
from stoker.supervise.actions import Job
from stoker.supervise.external.last_step import last_step
from stoker.supervise.external.program import working_directory
from stoker.supervise.health.trainer_protocol import CheckpointNotice
from stoker.supervise.run.launch_record import config_digest, read_launches
from stoker.supervise.run.memorization import read_tail
from stoker.supervise.run.record import RunRecord
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.base import Message, RunActivity, Slice
from stokerd.supervision.run import Run

LOOK_S = 2.0  # between two looks at a running trainer's files
QUIET_S = 5.0  # without a change, after which a save is over
FIRST = 3.0  # times that, for a save that is like none before it
TELL_S = 1.0  # between two words to the worker about the trainer's step
AGAIN_S = 10.0  # before a job that failed is tried again
COMPLAINT_S = 600.0
MOST_TOLD = 1000  # paths, of a trainer that tells more than can be sealed
FIELDS = ("step", "tokens", "loss", "val_loss")


class Saves:
    """What is known of a trainer's saves: the paths that it told of, its steps, what may be left half."""

    def __init__(self, run: Run) -> None:
        self.run, self.external = run, run.pipeline.train.external_trainer
        self.alerts = Alerts(run.events, COMPLAINT_S)
        kept = read_or_set_aside(run.layout.told, run.pipeline.layout.quarantine) if self.external else None
        notices = zip(kept["told"], kept["at"], strict=False) if kept else ()
        self.told = {path: CheckpointNotice(path, step, at) for (path, step), at in notices}
        self.retry_at = self._tell_at = 0.0
        self.heard = StepReports(self._logged())  # what the trainer told; the worker knows it, too
        self.was_saving = False  # as the worker knows it
        self.unsure: list[str] = []  # paths that the last trainer may have left half

    def receive(self) -> list[CheckpointNotice]:
        """Keeps the paths that the trainer has told of since the last call, and returns them."""
        new = {one.path: one if one.at else one._replace(at=time.time()) for one in self.run.told}
        self.run.told.clear()
        if new:
            self.keep({**self.told, **new})
        return list(new.values())

    def keep(self, told: Mapping[str, CheckpointNotice]) -> None:
        """Keeps the told paths that are not sealed."""
        if told == self.told:
            return
        self.told = dict(list(told.items())[-MOST_TOLD:])
        try:
            paths, at = [one[:2] for one in self.told.values()], [one.at for one in self.told.values()]
            write_record(self.run.layout.told, {"v": 1, "told": paths, "at": at})
        except StorageError as problem:  # the worker has them all the same
            self.alerts.raise_("storage_trouble", message=str(problem))

    @property
    def is_saving(self) -> bool:
        """Whether the trainer says that it saves."""
        trainer = self.run.state.trainer
        return trainer is not None and trainer.view.phase == "checkpoint"

    def hear_steps(self, now: float, *, is_due: bool) -> StepReport | None:
        """Notes the newest step that the trainer told and since when; returns it where it is due."""
        trainer = self.run.state.trainer
        if trainer is None or trainer.view.step is None or (now < self._tell_at and not is_due):
            return None
        told = {name: value for name in FIELDS if (value := getattr(trainer.view, name)) is not None}
        since = until = time.time()
        if trainer.is_read and trainer.read_at is not None:
            since, until = trainer.read_at[0], max(trainer.read_at)
        if self.heard.newest and self.heard.newest[1] >= until:
            return None
        self._tell_at = now + TELL_S
        self.heard.append((since, until, told))
        return self.heard.newest

    def _logged(self) -> Iterator[StepReport]:
        """Yields what an earlier supervisor wrote to the training log, whose times are whole seconds.

        Of a second the last row counts: that step was made by its end, and no higher one within it.
        """
        heard: dict[float, StepReport] = {}
        for row in read_tail(self.run.layout.metrics) if self.external else ():
            told = {name: row[name] for name in FIELDS if row.get(name) is not None}
            with contextlib.suppress(ValueError, TypeError):
                if isinstance(told.get("step"), int):
                    at = datetime.fromisoformat(row["time"]).timestamp() + 1.0
                    heard[at] = at, at, told
        yield from heard.values()

    def end(self) -> dict[str, Any]:
        """Returns what is known of the end of the last launch; hears its last step where nobody has."""
        run, trainer, alive_at = self.run, self.run.state.trainer, 0.0
        launches = read_launches(run.layout.launches)[0]
        if launches:
            output = run.layout.output(launches[-1].launch)
            with contextlib.suppress(OSError):
                alive_at = output.stat().st_mtime
            if (
                trainer is None
                and self.external
                and (step := last_step(output, self.external.step)) is not None
            ):
                self.heard.append((alive_at, time.time(), {"step": step}))
        return {
            "is_clean": run.state.exit is not None and run.state.exit.is_clean,
            "is_by_itself": run.state.exit is not None and run.state.exit.is_by_itself,
            "was_saving": self.is_saving,
            "alive_at": max(alive_at, self.heard.newest[1] if trainer and self.heard.newest else 0.0),
        }


@dataclass
class Prepared:
    """Whether what an ended trainer has left is sealed, and whether the path to resume from is right."""

    is_looked: bool = False
    is_restored: bool = False


SAVES = Slice("saves", Saves)
PREPARED = Slice("prepared", lambda _: Prepared(), Prepared, resets=(Phase.CLEANING,))


# Tasks


def _is_first(run: Run) -> bool:
    record = run.store.record
    return (record is None or not record.launches) and run.newest is None


def _task(run: Run, job: Job, **words: Any) -> dict[str, Any]:
    layout, record, external = run.layout, run.store.record, SAVES.of(run).external
    assert external is not None
    given_up = [*quarantined(run.pipeline.layout.quarantine), *layout.abandoned.iterdir()]
    return {
        "verb": job.kind,
        "directory": str(working_directory(run.pipeline)),
        "pattern": external.checkpoints,
        "checkpoints": str(layout.checkpoints),
        "given_up": list(map(str, given_up)),
        "replaced": str(layout.abandoned / "replaced"),
        "history": run.accounts.history(),
        "state": str(run.pipeline.state),
        "begun": datetime.fromisoformat(record.identity.created).timestamp() if record else 0.0,
        **words,
    }


def _seal_task(run: Run, job: Job, **words: Any) -> dict[str, Any]:
    saves, layout, trainer = SAVES.of(run), run.layout, run.state.trainer
    assert saves.external is not None
    saves.hear_steps(time.monotonic(), is_due=True)
    saves.was_saving = saves.is_saving
    return _task(
        run,
        job,
        launch=trainer.launch.launch if trainer is not None else new_id(),
        body=_body(run, run.store.begun),
        logs={PLAN_COPY: str(layout.plan), TIMELINES_COPY: str(layout.timelines)},
        told=list(saves.told.values()),
        look_s=LOOK_S,
        quiet_s=saves.external.quiet or QUIET_S,
        first_quiet_s=saves.external.quiet or FIRST * QUIET_S,
        is_saving=saves.was_saving,
        **{"origin": None, **words, "heard": list(saves.heard)},
    )


def _look_task(run: Run, job: Job) -> dict[str, Any]:
    return _seal_task(run, job, origin=job.subject or None, end=SAVES.of(run).end())


def _restore_task(run: Run, job: Job) -> dict[str, Any]:
    """Returns the task; without a record the run begins, and the trainer's path must hold nothing."""
    budget, origin = run.pipeline.quarantine, run.pipeline.train.init_from
    newest, record = run.newest, run.store.record
    return _task(
        run,
        job,
        sealed=None if newest is None else str(newest.path),
        body=None if newest is None else newest.body,
        run_id=record.identity.run_id if record else "",
        at=new_id(),
        is_first=_is_first(run),
        origin=None if origin is None else str(origin),
        unsure=SAVES.of(run).unsure,
        keep=budget.keep_checkpoints,
        keep_bytes=budget.keep_bytes,
    )


def _body(run: Run, record: RunRecord) -> dict[str, Any]:
    """Returns the fields of checkpoint.json that are the same for all checkpoints of a launch."""
    identity = record.identity
    return {
        "run": identity.run,
        "run_id": identity.run_id,
        "tokens": 0,
        "position": [0, 0],
        "timeline": run.accounts.timelines().current,
        "plan_head": run.planner.plan.head,
        "config_digest": config_digest(identity, {}, ""),
        "loss": None,
        "val_loss": None,
        "run_record": record.for_checkpoints(),
    }


# What is due


def _to_look(run: Run) -> Iterator[str]:
    """Yields what to seal before a checkpoint is chosen or, in a run that begins, before its launch."""
    record, origin = run.store.record, run.pipeline.train.init_from
    if SAVES.of(run).external is None or record is None:
        return
    if not (PREPARED.of(run).is_looked or _is_first(run)):  # also later, where proving restored run.json
        yield ""
    elif run.state.phase is Phase.WAITING and origin is not None and _is_first(run):
        yield str(origin)


def _to_restore(run: Run) -> Iterator[str]:
    external = SAVES.of(run).external
    is_needed = external is not None and (run.newest is not None or external.checkpoints is not None)
    if is_needed and run.store.record is not None and not PREPARED.of(run).is_restored:
        yield run.at.path.name


def _to_watch(run: Run) -> Iterator[str]:
    saves = SAVES.of(run)
    saves.receive()
    if saves.external is not None and time.monotonic() >= saves.retry_at:
        yield ""


def _to_tell(run: Run) -> Iterator[Message]:
    """Yields what the trainer told, for the worker that watches its saves."""
    saves = SAVES.of(run)
    told = saves.receive()
    if (heard := saves.hear_steps(time.monotonic(), is_due=bool(told))) is not None:
        yield {"heard": heard}
    if saves.is_saving != saves.was_saving:
        saves.was_saving = saves.is_saving
        yield {"is_saving": saves.was_saving}
    for one in told:
        yield {"told": one}


# Results


def _on_message(run: Run, job: Job, message: Message) -> None:
    saves, words = SAVES.of(run), {key: value for key, value in message.items() if key != "kind"}
    match message["kind"]:
        case "sealed":
            if words["replaced"]:
                run.checkpoints.forget(words["replaced"])
            run.counted.saves_refused = 0
            run.events.record("checkpoint_sealed", **words)
        case "refused":
            if words.pop("is_newest") and job.kind == "watch":
                run.counted.saves_refused += 1
                run.counted.save_refused = f"{words['path']}: {words['reason']}"
            run.events.record("checkpoint_refused", **words)
        case "taken":
            saves.keep({path: one for path, one in saves.told.items() if [*one] != words["told"]})
        case "trouble":
            text = f"{words['message']}; training continues, and it is retried"
            saves.alerts.raise_("checkpoint_failed", message=text)
        case "well":
            saves.alerts.clear("checkpoint_failed")
            saves.alerts.clear("external_unavailable", tell="external_available")


def _available(run: Run) -> None:
    SAVES.of(run).alerts.clear("external_unavailable", tell="external_available")
    run.change(keep_at=0.0)


def _looked(run: Run, _: Job, result: Message) -> None:
    _available(run)
    run.checkpoints.note_sealed(run.accounts.history())
    PREPARED.of(run).is_looked = True
    SAVES.of(run).unsure = result["unsure"]
    if result["sealed"]:  # proven before the launch from it, also where another was chosen already
        run.change(is_settled=False, resume=checkpoint_name(result["sealed"][-1]))
    SAVES.of(run).keep({})  # what is not sealed now never will be


def _restored(run: Run, job: Job, result: Message) -> None:
    _available(run)
    if result["status"] == "occupied":
        raise ConfigError(
            f"{run.pipeline.file}: train.external.checkpoints matches {result['path']}, which was there "
            "before this run began. To begin from it, name it as train.init_from; else move it away"
        )
    words = {"path": result["path"], "aside": result["aside"], "dropped": result["dropped"]}
    if result["status"] == "restored":
        run.events.record("checkpoint_restored", name=job.subject, **words)
    elif result["aside"]:
        run.events.record("external_set_aside", **words)
    PREPARED.of(run).is_restored = True
    run.counted.saves_refused = 0
    SAVES.of(run).heard = StepReports()  # of the launch before, which may have been further


def _failed(run: Run, job: Job, end: WorkerExit) -> None:
    """Tells why the trainer's directories cannot be used now; the job is tried again without limit."""
    saves, now, reason = SAVES.of(run), time.monotonic(), end.reason()
    is_bad = (end.error or {}).get("exit_code") == DataError.exit_code
    saves.retry_at = now + AGAIN_S
    directory = working_directory(run.pipeline)
    message = f"cannot {job.kind} in {directory}: {reason}; it is tried again"
    saves.alerts.raise_("external_unavailable", message=message, doing=job.kind)
    if job.kind == "watch":
        return
    if job.kind == "look" and job.subject and is_bad:
        raise ConfigError(f"{run.pipeline.file}: {reason}")
    if job.kind == "restore" and is_bad:
        run.checkpoints.forget(job.subject)  # proven again, it is convicted or restored
    run.state = run.state.paused(AGAIN_S, message, now)


_row = partial(
    RunActivity,
    module="stoker.checkpoints.external.worker",
    pool="external",
    silent_s=120.0,
    on_message=_on_message,
    on_end=_failed,
    slices=(SAVES, PREPARED),
)
# A run that begins restores, once its record is written, after it has sealed what it begins with.
BEFORE = (Phase.PROVING, Phase.WAITING)
LOOK = _row(kind="look", task=_look_task, on_done=_looked, due=_to_look, due_in=(), awaited_in=BEFORE)
RESTORE = _row(
    kind="restore", task=_restore_task, on_done=_restored, due=_to_restore, due_in=(), awaited_in=BEFORE[1:]
)
WATCH = _row(
    kind="watch",
    task=_seal_task,
    on_done=lambda run, *_: _available(run),
    due=_to_watch,
    due_in=(Phase.TRAINING,),
    send=_to_tell,
    keep_open=True,
)
