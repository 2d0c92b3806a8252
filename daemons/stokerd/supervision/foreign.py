"""The books and the begin of a run whose trainer is the user's own: it reads no plan and seals nothing."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.supervise.actions import Job, ProveCheckpoint, RestoreOutside
from stoker.supervise.run.gates import Gate
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run


def keep(run: Run, now: float) -> Iterator[Job]:
    """Brings checkpoints and consumed.json up to date; yields the jobs that this needs."""
    if run.state.phase is not Phase.WAITING:
        if name := run.checkpoints.unproven(run.accounts.history(), now):
            yield ProveCheckpoint(name)
        run.prune_and_keep()
        return
    run.data.gate = None
    if run.store.record is None:
        yield from _begin(run)
    run.accounts.keep(run.at)


def _begin(run: Run) -> Iterator[Job]:
    """Begins a new run as soon as the start gate of its dataset is open, or sets the gate that is closed."""
    foreign, gate = run.pipeline.train.foreign, Gate("open", "the trainer brings its own data")
    if run.pipeline.has_data:
        gate = run.data.start(run.planner.pin())
    if gate.state != "open":
        run.data.gate = gate
    elif foreign and foreign.checkpoints and not run.state.is_restored:
        # Before the record: begun on the checkpoints of another run, it could not be told where to begin.
        run.data.gate = Gate("closed", "looking at the trainer's directory")
        yield RestoreOutside("")
    else:
        run.events.record("start_gate_open", message=gate.why)
        run.store.begin_foreign()
        run.planner.belongs_to(run.store.begun.identity.run_id)
