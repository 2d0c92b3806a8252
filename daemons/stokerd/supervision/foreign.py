"""The books and gates of a run whose trainer is the user's own: it reads no plan and seals nothing."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.supervise.actions import Job, ProveCheckpoint, RestoreOutside
from stoker.supervise.run.gates import Gate, first_closed
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run


def keep(run: Run, now: float) -> Iterator[Job]:
    """Brings checkpoints and consumed.json up to date; yields the jobs that this needs."""
    if run.state.phase is not Phase.WAITING:
        if name := run.checkpoints.unproven(run.accounts.history(), now):
            yield ProveCheckpoint(name)
        run.prune_and_keep()
        return
    run.data.gate = first_closed(gates(run))
    glob = run.pipeline.train.foreign and run.pipeline.train.foreign.checkpoints
    if run.data.gate is None and run.store.record is None and glob and not run.state.is_restored:
        # Before the record: begun on the checkpoints of another run, it could not be told where to begin.
        run.data.gate = Gate("closed", "looking at the trainer's directory")
        yield RestoreOutside("")
    elif run.data.gate is None and run.store.record is None:
        run.store.begin_foreign()
        run.planner.belongs_to(run.store.begun.identity.run_id)
    run.accounts.keep(run.at)


def gates(run: Run) -> Iterator[Gate]:
    """Yields the gates before a launch."""
    if run.pipeline.has_data and run.store.record is None:
        yield run.data.start(run.planner.pin())
