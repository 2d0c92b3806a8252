"""The checkpoints of a trainer of the user's own: one worker at a time seals and restores them.

The daemon itself never touches the trainer's directories, which may hang. told.json keeps the paths that the
trainer told of until they are sealed: a later supervisor looks at them first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from stoker.checkpoints.external.heard import Heard, HeardSteps
from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY, checkpoint_name
from stoker.checkpoints.quarantine import quarantined
from stoker.kit.events import Alerts
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity, WorkerPool
from stoker.store.errors import ConfigError, DataError, StorageError, Transient
from stoker.store.record import new_id, read_or_set_aside, write_record
from stoker.supervise import actions as do
from stoker.supervise.external.last_step import last_step
from stoker.supervise.external.program import working_directory
from stoker.supervise.health.trainer_protocol import Told
from stoker.supervise.run.launch_record import config_digest, read_launches
from stoker.supervise.run.memorization import read_tail
from stoker.supervise.run.record import RunRecord
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run

LOOK_S = 2.0  # between two looks at a running trainer's files
QUIET_S = 5.0  # without a change, after which a save is over
FIRST = 3.0  # times that, for a save that is like none before it
TELL_S = 1.0  # between two words to the worker about the trainer's step
AGAIN_S = 10.0  # before a job that failed is tried again
COMPLAINT_S = 600.0
LEFTOVERS_S = 1.0  # for a killed worker of an earlier supervisor; the loop waits meanwhile
MOST_TOLD = 1000  # paths, of a trainer that tells more than can be sealed
FIELDS = ("step", "tokens", "loss", "val_loss")


class ExternalCheckpoints:
    """Seals, before each choice of a checkpoint and beside training; restores before each launch."""

    def __init__(self, run: Run) -> None:
        self.run, self._foreign = run, run.pipeline.train.foreign
        self._name = f"{run.context.layout.state}:external"
        self._pool = WorkerPool[do.ExternalJob](self._name, run.context.waiter, record=run.events.record)
        self._alerts = Alerts(run.events, COMPLAINT_S)
        kept = read_or_set_aside(run.layout.told, run.pipeline.layout.quarantine) if self._foreign else None
        told = kept["told"] if kept else []
        times = (kept or {}).get("at") or [time.time()] * len(told)  # an older version kept none
        self._told = {path: Told(path, step, at) for (path, step), at in zip(told, times, strict=False)}
        self._retry_at = self._tell_at = 0.0
        self._heard = HeardSteps(self._logged())  # what the trainer told; the worker knows it, too
        self._was_saving = False  # as the worker knows it
        self._unsure: list[str] = []  # paths that the last trainer may have left half

    @property
    def jobs(self) -> dict[str, do.Job]:
        """The running job, by its slot."""
        return {one.subject: one.facts for one in self._pool.jobs}

    @property
    def pids(self) -> set[int]:
        return self._pool.pids

    def due(self) -> do.ExternalJob | None:
        """Returns what must be done before a checkpoint is chosen, or before a launch."""
        run, state, record = self.run, self.run.state, self.run.store.record
        if self._foreign is None or record is None:
            return None
        if not (state.is_looked or self._is_first(record)):  # also later, where proving restored run.json
            return do.SealSaves()
        if state.phase is Phase.PROVING:
            return None
        if (origin := run.pipeline.train.init_from) is not None and self._is_first(record):
            return do.SealSaves(str(origin))
        is_needed = run.newest is not None or self._foreign.checkpoints is not None
        return do.RestoreSave(run.at.path.name) if is_needed and not state.is_restored else None

    def _is_first(self, record: RunRecord | None) -> bool:
        return (record is None or not record.launches) and self.run.newest is None

    def look(self, told: Iterable[Told]) -> None:
        """Takes in what the trainer told and what the worker did; watches a trainer that runs."""
        if self._foreign is None:
            return
        if new := {one.path: one if one.at else one._replace(at=time.time()) for one in told}:
            self._note({**self._told, **new})
        for job, messages, end in self._pool.hear():
            for message in messages:
                self._hear(message, job.facts)
            if end is not None:
                self._ended(job.facts, end)
        if self.run.state.live is not None:
            self._watch(new)

    def start(self, job: do.ExternalJob) -> None:
        """Starts a job's worker; a failure to start is one of the job."""
        try:
            self._pool.end_leftovers(LEFTOVERS_S)
            activity = Activity(job.kind, job.module, job.silent_s, keep_open=job.kind == "watch")
            self._pool.start(activity, job.slot, self._task(job), job)
        except Transient as problem:
            self._failed(job, str(problem))

    def stop(self) -> None:
        """Ends the worker; what it was copying is begun again."""
        self._pool.stop()

    # Tasks

    def _watch(self, told: Mapping[str, Told]) -> None:
        now = time.monotonic()
        heard = self._hear_steps(now, is_due=bool(told))
        job = next(iter(self._pool.jobs), None)
        if job is None:
            if now >= self._retry_at:
                self.start(do.WatchSaves())
        elif isinstance(job.facts, do.WatchSaves) and not job.abandoned:
            if heard is not None:
                job.worker.send({"heard": heard})
            if self._is_saving != self._was_saving:
                self._was_saving = self._is_saving
                job.worker.send({"is_saving": self._was_saving})
            for one in told.values():
                job.worker.send({"told": one})

    def _task(self, job: do.ExternalJob) -> dict[str, Any]:
        run, layout, record = self.run, self.run.layout, self.run.store.record
        assert self._foreign is not None
        given_up = [*quarantined(run.pipeline.layout.quarantine), *layout.abandoned.iterdir()]
        task: dict[str, Any] = {
            "verb": job.kind,
            "directory": str(working_directory(run.pipeline)),
            "pattern": self._foreign.checkpoints,
            "checkpoints": str(layout.checkpoints),
            "given_up": list(map(str, given_up)),
            "replaced": str(layout.abandoned / "replaced"),
            "history": run.accounts.history(),
            "state": str(run.pipeline.state),
            "begun": datetime.fromisoformat(record.identity.created).timestamp() if record else 0.0,
        }
        if isinstance(job, do.RestoreSave) or record is None:
            return task | self._to_restore(record)
        self._hear_steps(time.monotonic(), is_due=True)
        trainer, self._was_saving = run.state.trainer, self._is_saving
        task |= {
            "launch": trainer.launch.launch if trainer is not None else new_id(),
            "body": self._body(record),
            "logs": {PLAN_COPY: str(layout.plan), TIMELINES_COPY: str(layout.timelines)},
            "told": list(self._told.values()),
            "look_s": LOOK_S,
            "quiet_s": self._foreign.quiet or QUIET_S,
            "first_quiet_s": self._foreign.quiet or FIRST * QUIET_S,
            "is_saving": self._was_saving,
            "origin": job.origin if isinstance(job, do.SealSaves) else None,
        }
        if isinstance(job, do.SealSaves):
            task["end"] = self._end()
        return task | {"heard": list(self._heard)}

    def _end(self) -> dict[str, Any]:
        """Returns what is known of the end of the last launch; hears its last step where nobody has."""
        run, trainer, alive_at = self.run, self.run.state.trainer, 0.0
        launches = read_launches(run.layout.launches)[0]
        if launches:
            output = run.layout.output(launches[-1].launch)
            with contextlib.suppress(OSError):
                alive_at = output.stat().st_mtime
            if (
                trainer is None
                and self._foreign
                and (step := last_step(output, self._foreign.step)) is not None
            ):
                self._heard.append((alive_at, time.time(), {"step": step}))
        return {
            "is_clean": run.state.exit is not None and run.state.exit.is_clean,
            "is_by_itself": run.state.exit is not None and run.state.exit.is_by_itself,
            "was_saving": self._is_saving,
            "alive_at": max(alive_at, self._heard.newest[1] if trainer and self._heard.newest else 0.0),
        }

    @property
    def _is_saving(self) -> bool:
        """Whether the trainer says that it saves."""
        trainer = self.run.state.trainer
        return trainer is not None and trainer.view.phase == "checkpoint"

    def _to_restore(self, record: RunRecord | None) -> dict[str, Any]:
        run, budget, origin = self.run, self.run.pipeline.quarantine, self.run.pipeline.train.init_from
        newest = run.newest
        return {
            "sealed": None if newest is None else str(newest.path),
            "body": None if newest is None else newest.body,
            "run_id": record.identity.run_id if record else "",
            "at": new_id(),
            "is_first": self._is_first(record),
            "origin": None if origin is None else str(origin),
            "unsure": self._unsure,
            "keep": budget.keep_checkpoints,
            "keep_bytes": budget.keep_bytes,
        }

    def _body(self, record: RunRecord) -> dict[str, Any]:
        """Returns the fields of checkpoint.json that are the same for all checkpoints of a launch."""
        run, identity = self.run, record.identity
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

    def _hear_steps(self, now: float, *, is_due: bool) -> Heard | None:
        """Notes the newest step that the trainer told and since when; returns it where it is due."""
        trainer = self.run.state.trainer
        if trainer is None or trainer.view.step is None or (now < self._tell_at and not is_due):
            return None
        told = {name: value for name in FIELDS if (value := getattr(trainer.view, name)) is not None}
        since = until = time.time()
        if trainer.is_read and trainer.read_at is not None:
            since, until = trainer.read_at[0], max(trainer.read_at)
        if self._heard.newest and self._heard.newest[1] >= until:
            return None
        self._tell_at = now + TELL_S
        self._heard.append((since, until, told))
        return self._heard.newest

    def _logged(self) -> Iterator[Heard]:
        """Yields what an earlier supervisor wrote to the training log, whose times are whole seconds.

        Of a second the last row counts: that step was made by its end, and no higher one within it.
        """
        heard: dict[float, Heard] = {}
        for row in read_tail(self.run.layout.metrics) if self._foreign else ():
            told = {name: row[name] for name in FIELDS if row.get(name) is not None}
            with contextlib.suppress(ValueError, TypeError):
                if isinstance(told.get("step"), int):
                    at = datetime.fromisoformat(row["time"]).timestamp() + 1.0
                    heard[at] = at, at, told
        yield from heard.values()

    # Results

    def _hear(self, said: Mapping[str, Any], job: do.ExternalJob) -> None:
        run, words = self.run, {key: value for key, value in said.items() if key != "kind"}
        match said["kind"]:
            case "sealed":
                if words["replaced"]:
                    run.checkpoints.forget(words["replaced"])
                run.counted.saves_refused = 0
                run.events.record("checkpoint_sealed", **words)
            case "refused":
                if words.pop("is_newest") and isinstance(job, do.WatchSaves):
                    run.counted.saves_refused += 1
                    run.counted.save_refused = f"{words['path']}: {words['reason']}"
                run.events.record("checkpoint_refused", **words)
            case "taken":
                self._note({path: one for path, one in self._told.items() if [*one] != words["told"]})
            case "trouble":
                message = f"{words['message']}; training goes on, and it is tried again"
                self._alerts.raise_("checkpoint_failed", message=message)
            case "well":
                self._alerts.clear("checkpoint_failed")
                self._alerts.clear("external_unavailable", tell="external_available")

    def _ended(self, job: do.ExternalJob, end: WorkerExit) -> None:
        run, result = self.run, end.result
        if result is None:
            self._failed(job, end.reason(), (end.error or {}).get("exit_code"))
            return
        self._alerts.clear("external_unavailable", tell="external_available")
        run.change(keep_at=0.0)
        if isinstance(job, do.RestoreSave):
            self._restored(job, result)
        elif isinstance(job, do.SealSaves):
            run.checkpoints.note_sealed(run.accounts.history())
            run.change(is_looked=True)
            self._unsure = result["unsure"]
            if result["sealed"]:  # proven before the launch from it, also where another was chosen already
                run.change(is_settled=False, resume=checkpoint_name(result["sealed"][-1]))
            self._note({})  # what is not sealed now never will be

    def _restored(self, job: do.RestoreSave, result: Mapping[str, Any]) -> None:
        run = self.run
        if result["status"] == "occupied":
            raise ConfigError(
                f"{run.pipeline.file}: train.external.checkpoints matches {result['path']}, which was there "
                "before this run began. To begin from it, name it as train.init_from; else move it away"
            )
        words = {"path": result["path"], "aside": result["aside"], "dropped": result["dropped"]}
        if result["status"] == "restored":
            run.events.record("checkpoint_restored", name=job.name, **words)
        elif result["aside"]:
            run.events.record("external_set_aside", **words)
        run.change(is_restored=True)
        run.counted.saves_refused = 0
        self._heard = HeardSteps()  # of the launch before, which may have been further

    def _failed(self, job: do.ExternalJob, reason: str, code: int | None = None) -> None:
        """Tells why the trainer's directories cannot be used now; the job is tried again without limit."""
        run, now = self.run, time.monotonic()
        self._retry_at = now + AGAIN_S
        directory = working_directory(run.pipeline)
        message = f"cannot {job.kind} in {directory}: {reason}; it is tried again"
        self._alerts.raise_("external_unavailable", message=message, doing=job.kind)
        if isinstance(job, do.WatchSaves):
            return
        if isinstance(job, do.SealSaves) and job.origin is not None and code == DataError.exit_code:
            raise ConfigError(f"{run.pipeline.file}: {reason}")
        if isinstance(job, do.RestoreSave) and code == DataError.exit_code:
            run.checkpoints.forget(job.name)  # proven again, it is convicted or restored
        run.state = run.state.paused(AGAIN_S, message, now)

    def _note(self, told: Mapping[str, Told]) -> None:
        """Keeps the told paths that are not sealed."""
        if told == self._told:
            return
        self._told = dict(list(told.items())[-MOST_TOLD:])
        try:
            paths, at = [one[:2] for one in self._told.values()], [one.at for one in self._told.values()]
            write_record(self.run.layout.told, {"v": 1, "told": paths, "at": at})
        except StorageError as problem:  # the worker has them all the same
            self._alerts.raise_("storage_trouble", message=str(problem))
