"""Keeps evaluations.jsonl of a run, and promoted.json, which follows from it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.checkpoints.retention import counts
from stoker.store.log import ChainedLog, read_log
from stoker.store.record import utc_now, write_record
from stoker.supervise.evaluation.due import Course
from stoker.supervise.evaluation.lines import Line, parse_line
from stoker.supervise.evaluation.promoted import Promoted
from stoker.supervise.mirror.inventory import Checkpoint

if TYPE_CHECKING:
    from stokerd.supervision.run import Run

KEEP_SAMPLES = 50  # files, besides those of the promoted checkpoint


class EvaluationBooks:
    """The lines of a run's evaluations, in the order written; the log is the truth, promoted.json follows."""

    def __init__(self, run: Run) -> None:
        self._run = run
        log = read_log(run.layout.evaluations)
        if log.damage:
            run.events.record("record_damaged", message=log.damage[0])
        self.lines = [parse_line(entry, digest) for entry, digest in zip(log.entries, log.hashes, strict=True)]
        self.carry_out()
