"""Early stop: whether the held-out loss improves no more, by the rows of the training log alone.

Trainer and supervisor ask the same function of the same rows, so a resumed run decides as the first did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.retention import History, counts
from stoker.supervise.run.step_rows import rows_of

# By step: the held-out loss and its standard error, in nats per token; None: not finite.
Evaluations = Mapping[int, tuple[float | None, float | None]]


@dataclass(frozen=True)
class Standstill:
    """How many evaluations in a row, the newest included, are no better than the `best` loss."""

    evaluations: int = 0
    best: float | None = None
    best_step: int = 0

    def ends(self, patience: int | None) -> bool:
        return patience is not None and self.evaluations >= patience


def standstill(evaluations: Evaluations) -> Standstill:
    """Returns the standstill after all these evaluations.

    A loss counts as better where it is under the best by more than its standard error; that one is the best
    from then on. Gains that are smaller each still add up.
    """
    found = Standstill()
    for step, (loss, stderr) in sorted(evaluations.items()):
        if loss is not None and (found.best is None or loss < found.best - (stderr or 0.0)):
            found = Standstill(0, loss, step)
        else:
            found = Standstill(found.evaluations + 1, found.best, found.best_step)
    return found


def newest_evaluation(evaluations: Evaluations, upto: float = math.inf) -> tuple[int, float] | None:
    """Returns step and loss of the newest finite evaluation up to a step."""
    known = [(step, loss) for step, (loss, _) in evaluations.items() if step <= upto and loss is not None]
    return max(known, default=None)


def read_evaluations(
    log: Path, history: History, upto: float = math.inf, *, tail_bytes: int | None = None
) -> dict[int, tuple[float | None, float | None]]:
    """Returns the evaluations of a history in a training log, or in its end, up to a step.

    {} for a missing log. Raises StorageError for a log that cannot be read.
    """
    return {
        row["step"]: (row["val_loss"], row.get("val_stderr"))
        for row in rows_of(log, b'"val_loss"', tail_bytes=tail_bytes)
        if "val_loss" in row and row["step"] <= upto and counts(row["timeline"], row["step"], history)
    }
