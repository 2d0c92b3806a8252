"""The jobs of the supervisor's workers: for each slot the worker's task, and what its end makes true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stokerd.supervision.jobs import mirror, proofs
from stokerd.supervision.run import Run

Task = Callable[[Run, Any], dict[str, Any]]
Ended = Callable[[Run, Any, Mapping[str, Any] | None, str], None]  # gets the result, or None and the reason
ACTIVITIES: Mapping[str, tuple[Task, Ended]] = {  # by slot
    "checkpoint": (proofs.checkpoint_task, proofs.checkpoint_proved),
    "sets": (proofs.sets_task, proofs.sets_proved),
    "heldout": (proofs.heldout_task, proofs.heldout_copied),
    "origin": (proofs.origin_task, proofs.origin_proved),
    mirror.MIRROR: (mirror.mirror_task, mirror.mirror_ended),
}
