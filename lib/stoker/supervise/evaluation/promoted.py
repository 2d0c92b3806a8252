"""promoted.json: the checkpoint that evaluation promoted last, in force while it is on the run's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.checkpoints.retention import History, counts


@dataclass(frozen=True)
class Promoted:
    """`line` is the hash of the line in evaluations.jsonl that promoted it."""

    step: int
    timeline: int
    checkpoint: str
    digest: str
    line: str

    def body(self) -> dict[str, Any]:
        """Returns the record's body."""
        return {"v": 1, **vars(self)}


def in_force(body: Mapping[str, Any] | None, history: History) -> Promoted | None:
    """Returns the promotion of a record, None for one that a rollback went back past, or without a record."""
    try:
        fields = body or {}
        found = Promoted(**{name: fields[name] for name in Promoted.__dataclass_fields__})
    except KeyError:  # of another program, which promotes by its own rules
        return None
    return found if counts(found.timeline, found.step, history) else None
