"""What an external trainer tells, or what is read of its output; the rows of its training log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from stoker.store.record import utc_now
from stoker.supervise.external.last_step import EXPRESSION_S
from stoker.supervise.external.patterns import Read, Reader, words
from stoker.supervise.external.rows import Rows
from stoker.supervise.external.tail import Tail, TooSlowError, cpu_limit
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.metrics_log import RowLog, cut_end
from stoker.supervise.trainer import Trainer
from stokerd.supervision.run import Run

LOOK_S = 1.0  # between two looks at the output
UNREAD_S = 600.0  # without a step, before an operator is told

REMEDY = (
    "so a hang shows only as processes that do nothing, and no loss is known. Write a regular expression "
    "with a group `step` as train.external.step, or use the client (docs/trainers.md)"
)


class TrainerOutput:
    """Follows one launch; `adopted` is its trainer where this process's image before began it."""

    def __init__(self, run: Run, launch: Launch, adopted: Trainer | None = None) -> None:
        external = run.pipeline.train.external_trainer
        resumed = launch.resume_step if launch.resume_from else -1
        step = adopted.step if adopted else resumed
        self._run, self._launch = run, launch
        self._tail, self._rows = Tail(run.layout.output(launch.launch)), Rows(step)
        self._pattern = external.step if external else None
        self._reader = Reader(self._pattern) if self._pattern else None
        self._log: RowLog | None = None
        self._look_at, self._unread_at = 0.0, time.monotonic() + UNREAD_S
        with contextlib.suppress(OSError):  # a disk in trouble keeps no trainer from its launch
            cut_end(run.layout.metrics, launch.timeline, step)

    def poll(self, trainer: Trainer, datagrams: Sequence[bytes], now: float, *, is_last: bool) -> Trainer:
        """Returns the trainer after its words by now, and after its output unless it tells steps itself."""
        reader = self._reader if now >= self._look_at or is_last else None
        if trainer.is_read and reader is not None:
            self._look_at = now + LOOK_S
            moved, read_at = reader.moved, time.time()  # before it is read: no line of later is known
            read = self._read(reader, is_last=is_last)
            told = [words(one, self._launch.launch) for one in read]
            datagrams = [*datagrams, *told]
            has_moved = reader.moved > moved
            trainer = trainer.after_output(told, now, has_moved=has_moved, read_as=reader.kind)
            trainer = replace(trainer, read_at=(self._tail.changed_at, read_at))
            if trainer.view.step is None and now >= self._unread_at:
                minutes = UNREAD_S / 60
                self._tell_unread(f"step: {self._pattern} read nothing for {minutes:.0f} minutes, {REMEDY}")
        self._write(datagrams, now)
        return trainer

    def close(self) -> None:
        """Makes the rows durable."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.sync()
            self._log.close()

    def _read(self, reader: Reader, *, is_last: bool) -> list[Read]:
        pieces = self._tail.poll(is_last=is_last)
        if not reader.is_expression:
            return reader.read(pieces)
        try:
            with cpu_limit(EXPRESSION_S):
                return reader.read(pieces)
        except TooSlowError:
            self._reader = None
            self._tell_unread(f"the expression {self._pattern} takes too long: no step is read, {REMEDY}")
            return []

    def _tell_unread(self, message: str) -> None:
        self._unread_at = float("inf")
        self._run.events.record("steps_unread", launch=self._launch.launch, message=message)

    def _write(self, datagrams: Sequence[bytes], now: float) -> None:
        with contextlib.suppress(OSError):  # a full disk: rows are missing, training goes on
            for row in self._rows.of(datagrams, self._launch.launch, now):
                if self._log is None:
                    self._log = RowLog(self._run.layout.metrics, self._launch.timeline)
                self._log.append({**row, "time": utc_now()})
