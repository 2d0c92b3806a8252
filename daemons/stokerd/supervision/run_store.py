"""The run's record as the supervisor keeps it: read, compared with what is configured now, written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoints.format import BODY
from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.store.errors import ConfigError, DataError
from stoker.store.names import new_id, utc_now
from stoker.store.record import read_or_set_aside, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.launch_record import dtype_for
from stoker.supervise.run.record import (
    Heldout,
    Identity,
    RunRecord,
    configured,
    parse_record,
    pinned,
    refusal,
)


class RunStore:
    """run.json's one reader and writer here; `record` is None until the run has begun."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.path = pipeline.layout.run(pipeline.train.run).record
        self.record: RunRecord | None = None
        self.is_last_forgiven = False  # the launch that was counted last never started

    @property
    def begun(self) -> RunRecord:
        """The record of a run that has begun."""
        assert self.record is not None
        return self.record

    def read(self) -> None:
        """Take up run.json if it is there; ConfigError when the run began with another configuration."""
        body = read_or_set_aside(self.path, self.pipeline.layout.quarantine)
        if body is None:
            return
        self.record = self._parsed(body, self.path)
        self._refuse_changes(configured(self.pipeline))
        # One more try, whatever was counted: an operator who starts the supervisor may have mended the cause.
        most = self.pipeline.supervise.no_progress_launches
        self.record = self.record.moved(fruitless=min(self.record.fruitless, most - 1))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Write run.json again from what a checkpoint carries of it."""
        self.record = self._parsed(checkpoint.body["run_record"], checkpoint.path / BODY)
        self._refuse_changes(configured(self.pipeline))
        self.change(best_step=checkpoint.step)

    def begin(self, identity: Identity, heldout: Heldout | None) -> None:
        """The run begins: its record is written for the first time."""
        self._write(RunRecord(identity, heldout))

    def launching(self) -> None:
        """A launch begins. It counts as fruitless until it got somewhere: the supervisor may die with it."""
        before = self.begun.moved(fruitless=max(0, self.begun.fruitless - self.is_last_forgiven))
        self.change(
            state="running",
            finished=None,
            reason=None,
            launches=before.launches + 1,
            fruitless=before.fruitless + 1,
        )
        self.is_last_forgiven = False

    def stopped(self) -> None:
        """The launch ended because this daemon was asked to stop: it does not count."""
        self.change(fruitless=max(0, self.begun.fruitless - 1))

    def rolled_back(self, step: int) -> None:
        """The run goes on from an earlier step, also where it had finished or failed."""
        self._write(self.begun.gone_back(step))

    def fruitful(self) -> None:
        """The run has advanced, or its data was mended: earlier launches no longer count."""
        if self.begun.fruitless:
            self.change(fruitless=0)

    def change(self, **changes: Any) -> None:
        """Change the record, durably."""
        self._write(self.begun.moved(**changes))

    def _write(self, record: RunRecord) -> None:
        write_record(self.path, record.body())
        self.record = record  # only now: a launch that a full disk prevents is not counted

    def new_identity(self, pin: DatasetPin) -> Identity:
        """The identity of a run that begins now."""
        vocab_size = pin.tokenizer.vocab_size
        return Identity(
            run=self.pipeline.train.run,
            run_id=new_id(),
            created=utc_now(),
            vocab_size=vocab_size,
            dtype=dtype_for(vocab_size),
            seq_len=self.pipeline.train.seq_len,
            **{**configured(self.pipeline), **pinned(pin)},
        )

    def check_pin(self, pin: DatasetPin) -> None:
        """ConfigError when the dataset is not built as it was when the run began."""
        self._refuse_changes(pinned(pin))

    def check_ours(self, checkpoint: Checkpoint) -> None:
        """DataError when a checkpoint is another run's."""
        run_id = self.begun.identity.run_id
        if checkpoint.body["run_id"] != run_id:
            raise DataError(
                f"{checkpoint.path} is of run id {checkpoint.body['run_id']}, {self.path} names {run_id}; "
                "move the checkpoints of the other run away"
            )

    def _parsed(self, body: Mapping[str, Any], where: Path) -> RunRecord:
        try:
            return parse_record(body, where)
        except ValueError as problem:
            raise DataError(f"{where}: {problem}") from problem

    def _refuse_changes(self, wanted: Mapping[str, Any]) -> None:
        if why := refusal(self.pipeline, self.begun.identity, wanted):
            raise ConfigError(why)
