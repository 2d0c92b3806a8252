"""The supervisor's store of run.json: reads it, compares it with the configuration, writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.checkpoints.format import BODY
from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.shards.format.identity import dtype_for
from stoker.store.errors import ConfigError, DataError
from stoker.store.names import new_id, utc_now
from stoker.store.record import read_or_set_aside, write_record
from stoker.supervise.mirror.inventory import Checkpoint
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
    """Reads and writes run.json; `record` is None until the run has begun.

    Raises ConfigError where the run began with another configuration.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.path = pipeline.layout.run(pipeline.train.run).record
        self.record: RunRecord | None = None
        body = read_or_set_aside(self.path, pipeline.layout.quarantine)
        if body is not None:
            record = parse_record(body, self.path)
            self._refuse_changes(record.identity, configured(pipeline))
            # A start grants one more launch: the operator may have mended the cause.
            most = pipeline.supervise.no_progress_launches - 1
            self.record = replace(record, fruitless=min(record.fruitless, most))

    @property
    def begun(self) -> RunRecord:
        assert self.record is not None
        return self.record

    def begin(self, pin: DatasetPin, heldout: Heldout | None) -> None:
        """Writes the record of a new run."""
        train, vocab_size = self.pipeline.train, pin.tokenizer.vocab_size
        identity = Identity(
            run=train.run,
            run_id=new_id(),
            created=utc_now(),
            vocab_size=vocab_size,
            dtype=dtype_for(vocab_size),
            seq_len=train.seq_len,
            **{**configured(self.pipeline), **pinned(pin)},
        )
        self._write(RunRecord(identity, heldout))

    def settle(self, checkpoint: Checkpoint) -> bool:
        """Restores a lost record from a checkpoint, and returns True where it did.

        Raises DataError where the checkpoint belongs to another run.
        """
        is_lost = self.record is None
        if is_lost:
            record = parse_record(checkpoint.body["run_record"], checkpoint.path / BODY)
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

    def rolled_back(self, step: int) -> None:
        """Makes the run continue from an earlier step, also where it had finished or failed."""
        self.change(state="waiting", finished=None, reason=None, fruitless=0, best_step=step)

    def change(self, **changes: Any) -> None:
        self._write(replace(self.begun, **changes))

    def check_pin(self, pin: DatasetPin) -> None:
        """Raises ConfigError where the dataset is built with other settings than when the run began."""
        self._refuse_changes(self.begun.identity, pinned(pin))

    def _write(self, record: RunRecord) -> None:
        write_record(self.path, record.body())
        self.record = record  # only after the write, which fails on a full disk

    def _refuse_changes(self, identity: Identity, wanted: Mapping[str, Any]) -> None:
        if why := refusal(self.pipeline, identity, wanted):
            raise ConfigError(why)
