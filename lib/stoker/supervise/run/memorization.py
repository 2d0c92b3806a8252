"""Memorization: whether a run fits text that it reads again far better than held-out text.

In the first epoch each token is new, so training loss and held-out loss measure the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from stoker.store.errors import StorageError
from stoker.supervise.run.step_rows import rows_of

STANDARD_ERRORS = 5.0  # a gap beyond so many is no accident of the held-out windows
WORSE = 1.5  # times the gap that was told last
LEAST_STEPS, MOST_STEPS = 10, 500  # before an evaluation, whose training losses are averaged
TAIL_BYTES = 512 << 10  # of the log: more rows than that


@dataclass(frozen=True)
class Gap:
    """The held-out loss over the mean training loss of the steps before it, in nats per token."""

    step: int
    train_loss: float
    val_loss: float
    stderr: float  # of the difference

    @property
    def nats(self) -> float:
        return self.val_loss - self.train_loss

    def is_suspected(self, *, epoch: int, told: float) -> bool:
        """Whether to tell of it in an epoch (from 0), after a gap of `told` was told (0: none yet)."""
        return epoch > 0 and self.nats > max(STANDARD_ERRORS * self.stderr, WORSE * told)

    def words(self, epoch: int) -> dict[str, Any]:
        """Returns the fields of the event."""
        losses = {"train_loss": self.train_loss, "val_loss": self.val_loss, "stderr": self.stderr}
        message = (
            f"the held-out loss is {self.nats / self.stderr:.0f} standard errors over the training loss, in "
            f"epoch {epoch + 1}: the model learns its text by heart. More text, fewer epochs or a smaller "
            "model help; train.evaluate.patience ends such a run"
        )
        rounded = {name: round(value, 4) for name, value in losses.items()}
        return {"step": self.step, "epoch": epoch + 1, **rounded, "message": message}


def newest_gap(rows: Iterable[Mapping[str, Any]], timeline: int) -> Gap | None:
    """Returns the gap at the last evaluation of a timeline; None with too few rows or a loss not finite."""
    losses: list[float] = []
    found = None
    for row in rows:
        if row.get("timeline") != timeline:
            continue
        if type(loss := row.get("loss")) is float:
            losses.append(loss)
        elif "val_loss" in row:
            found, losses = _gap(row, losses[-MOST_STEPS:]), []
    return found


def _gap(row: Mapping[str, Any], losses: list[float]) -> Gap | None:
    loss, stderr = row["val_loss"], row.get("val_stderr")
    if len(losses) < LEAST_STEPS or type(loss) is not float or not stderr:
        return None
    return Gap(row["step"], fmean(losses), loss, math.hypot(stderr, stdev(losses) / math.sqrt(len(losses))))


def read_tail(log: Path) -> list[Mapping[str, Any]]:
    """Returns the newest whole rows of a training log, in their order; none of one that cannot be read."""
    with contextlib.suppress(StorageError):
        return [*rows_of(log, tail_bytes=TAIL_BYTES)]
    return []
