"""A checkpoint brought back from the mirror by a command, where no supervisor is there to ask."""

from __future__ import annotations

from stoker.checkpoints.mirror.copy import fetch_checkpoint
from stoker.checkpoints.mirror.layout import fallback, list_mirror, require_ours
from stoker.checkpoints.select import History
from stoker.config.schema import Pipeline


def fetch_step(pipeline: Pipeline, step: int, history: History, run_id: str) -> bool:
    """Bring a step's checkpoint back, proven, into the run's `checkpoints/`; False where the mirror has none.

    Only for who holds the supervisor's lock. Raises UnavailableError where warm is not there, StorageError
    where either disk cannot be read or written now.
    """
    warm, run = pipeline.warm_layout, pipeline.layout.run(pipeline.train.run)
    if warm is None:
        return False
    mirror = warm.checkpoints(pipeline.train.run)
    require_ours(warm, mirror, pipeline.name, expected=False)
    ours = [one for one in list_mirror(mirror) if one.run_id in (None, run_id)]
    copies = [one for one in fallback(ours, history, step - 1) if one.step == step]
    return any(
        fetch_checkpoint(mirror / one.name, run.checkpoints, warm.trash, lambda _: None).state == "fetched"
        for one in copies
    )
