"""run.json: read at the start, and written whenever the run's state changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.checkpoints.format import BODY
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin
from stoker.shards.format.identity import dtype_for
from stoker.store.errors import ConfigError, DataError
from stoker.store.record import new_id, read_or_set_aside, utc_now, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run import record as run_record
from stoker.supervise.run.origin import Origin
from stoker.supervise.run.record import Heldout, RunRecord, configured, file_digest, pinned


class RunStore:
    """Reads and writes run.json; `record` is None until the run has begun.

    Raises ConfigError where the run began with another configuration.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.path = pipeline.layout.run(pipeline.train.run).record
        self.record: RunRecord | None = None
        self._file = file_digest(pipeline)
        body = read_or_set_aside(self.path, pipeline.layout.quarantine)
        if body is not None:
            self.record = run_record.parse_record(body, self.path)
            self._refuse_changes(self.record.identity, configured(pipeline))

    @property
    def begun(self) -> RunRecord:
        assert self.record is not None
        return self.record

    def begin(self, pin: DatasetPin, heldout: Heldout | None, origin: Origin | None) -> None:
        """Writes the record of a new run."""
        vocab_size = pin.tokenizer.vocab_size
        data = {**pinned(pin), "vocab_size": vocab_size, "dtype": dtype_for(vocab_size)}
        self._begin(data, self.pipeline.train.seq_len, heldout, origin)

    def begin_external(self) -> None:
        """Writes the record of a new run whose trainer reads no plan: nothing is fixed of its data."""
        data = {"build_id": "", "tokenizer_sha256": "", "vocab_size": 0, "dtype": ""}
        self._begin(data, 0, None, None)

    def _begin(
        self, data: Mapping[str, Any], seq_len: int, heldout: Heldout | None, origin: Origin | None
    ) -> None:
        fixed = {**configured(self.pipeline), **data}
        del fixed["init_from"]  # the origin says it
        identity = run_record.Identity(
            run=self.pipeline.train.run,
            run_id=new_id(),
            created=utc_now(),
            seq_len=seq_len,
            origin=origin,
            **fixed,
        )
        self._write(RunRecord(identity, heldout))

    def settle(self, checkpoint: Checkpoint) -> bool:
        """Restores a lost record from a checkpoint, and returns True where it did.

        Raises DataError where the checkpoint belongs to another run.
        """
        is_lost = self.record is None
        if is_lost:
            record = run_record.parse_record(checkpoint.body["run_record"], checkpoint.path / BODY)
            self._refuse_changes(record.identity, configured(self.pipeline))
            self._write(replace(record, best_step=checkpoint.step))
        run_id = self.begun.identity.run_id
        if checkpoint.body["run_id"] != run_id:
            raise DataError(
                f"{checkpoint.path} is of run id {checkpoint.body['run_id']}, {self.path} names {run_id}; "
                "move the checkpoints of the other run away"
            )
        return is_lost

    def launching(self) -> None:
        """Counts a launch, as fruitless until it progresses: the supervisor may die with the trainer."""
        launches, fruitless = self.begun.launches + 1, self.begun.fruitless + 1
        self.change(state="running", finished=None, reason=None, launches=launches, fruitless=fruitless)

    def fruitful(self) -> None:
        """Forgets fruitless launches: the run has progressed, or its data was mended."""
        if self.begun.fruitless:
            self.change(fruitless=0)

    def forgive_launch(self) -> None:
        """Takes back that the last launch was counted as fruitless: its end says nothing about the run."""
        self.change(fruitless=max(0, self.begun.fruitless - 1))

    def rolled_back(self, step: int, *, halted: Mapping[str, Any] | None = None) -> None:
        """Makes the run continue from an earlier step, also where it had finished, failed or halted."""
        held = _held(halted, self.begun.paused)
        self.change(**held, finished=None, reason=None, fruitless=0, best_step=step)

    def halted(self, reason: str, kind: str, remedy: str) -> dict[str, Any]:
        """Returns the fields that end launches until `resume`, also over restarts."""
        about = {"reason": reason, "class": kind, "remedy": remedy, "since": utc_now()}
        numbers = {"launches": self.begun.launches, "file": self._file}
        return _held({**about, **numbers}, self.begun.paused)

    def pause(self, by: str) -> None:
        """Ends launches until `resume`, because an operator asks for it."""
        self.change(**_held(self.begun.halted, {"since": utc_now(), "by": by}))

    def resume(self, *, paused: Mapping[str, Any] | None = None) -> None:
        """Allows launches again, unless the run stays paused; none of those before counts as fruitless."""
        self.change(**_held(None, paused), finished=None, fruitless=0, tried=None)

    @property
    def ended_by_trainer(self) -> str | None:
        """Why a run is over whose trainer finished it, by the file of now; None: it goes on."""
        record = self.record
        if record is None or record.finished != run_record.BY_TRAINER or record.finished_with != self._file:
            return None
        return record.finished

    @property
    def is_begun_again(self) -> bool:
        """Whether another file than that of now was the one by which the trainer finished the run."""
        record = self.record
        return record is not None and record.finished == run_record.BY_TRAINER and not self.ended_by_trainer

    def by_trainer(self) -> dict[str, Any]:
        """Returns the fields of a run that its trainer finished; with another file it begins again."""
        return {"finished": run_record.BY_TRAINER, "finished_with": self._file}

    @property
    def is_file_changed(self) -> bool:
        """Whether the pipeline file says something else than when the run was halted."""
        halted = self.record.halted if self.record is not None else None
        return halted is not None and halted["file"] != self._file

    def change(self, **changes: Any) -> None:
        self._write(replace(self.begun, **changes))

    def check_pin(self, pin: DatasetPin) -> None:
        """Raises ConfigError where the dataset is built with other settings than when the run began."""
        self._refuse_changes(self.begun.identity, pinned(pin))

    def _write(self, record: RunRecord) -> None:
        write_record(self.path, record.body())
        self.record = record  # only after the write, which fails on a full disk

    def _refuse_changes(self, identity: run_record.Identity, wanted: Mapping[str, Any]) -> None:
        if why := run_record.refusal(self.pipeline, identity, wanted):
            raise ConfigError(why)


def _held(halted: Mapping[str, Any] | None, paused: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of a record that say whether a launch may be made."""
    state = "halted" if halted is not None else "paused" if paused is not None else "waiting"
    return {"state": state, "halted": halted, "paused": paused}
