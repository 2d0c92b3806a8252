"""Keeps plan, checkpoints and consumed.json up to date while the run waits for data, trains, or is finished.

The functions write for `Effects`, and return the proofs and copies they need as jobs.
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.corpus.records.pin import DatasetPin
from stoker.plan.positions import Position
from stoker.supervise.actions import Job, ProveCheckpoint
from stoker.supervise.run.gates import Gate, first_closed
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run


def prune_and_keep(run: Run) -> None:
    """Removes superfluous checkpoints, which makes room, and brings consumed.json up to date."""
    for step in run.checkpoints.prune():
        run.events.record("checkpoint_pruned", step=step)
    run.accounts.keep(run.at)


def keep(run: Run, now: float) -> Iterator[Job]:
    """Brings plan, checkpoints and consumed.json up to date; yields the jobs that this needs."""
    pin = run.planner.pin()
    if run.state.phase is Phase.WAITING:
        yield from _begin(run, pin) if run.store.record is None else _gather(run, pin)
        return
    if name := run.checkpoints.unproven(run.accounts.history(), now):
        yield ProveCheckpoint(name)
    prune_and_keep(run)
    if (trainer := run.state.live) is not None:
        position = trainer.position or run.at.position
        if trainer.step > trainer.launch.resume_step:  # the time before the first step is not training
            run.accounts.moved(position)
        yield from _keep_planned(run, pin, trainer.step, position)


def _begin(run: Run, pin: DatasetPin | None) -> Iterator[Job]:
    """Begins a new run once the start gate is open and the held-out windows are copied."""
    data, state = run.data, run.state
    if not state.is_gate_open:
        data.gate = data.start(pin)
        if data.gate.state != "open":
            return
        run.events.record("start_gate_open", message=data.gate.why)
        run.change(is_gate_open=True)
    if pin is None:
        data.gate = Gate("closed", "waiting for the dataset's pin")
        return
    job, held = data.need_heldout(pin), state.heldout
    if job is None or held is not None:
        run.store.begin(pin, held if held is not None and held.windows else None)
        run.planner.belongs_to(run.store.begun.identity.run_id)
        yield from _gather(run, pin)
        return
    run.planner.note_wants(data.needed, data.needed)  # the run has no plan yet that would keep them on hot
    run.accounts.keep(run.at)
    data.gate = first_closed(data.launchable(pin))
    if (proof := data.to_prove()) is not None:
        yield proof
    if data.gate is None:
        data.gate = Gate("closed", "copying held-out windows")
        yield job


def _gather(run: Run, pin: DatasetPin | None) -> Iterator[Job]:
    """Prepares the data that a launch reads, and sets the gate that is still closed."""
    step, position = run.at.step, run.at.position
    run.accounts.reach = run.data.need(position, run.accounts.skips(), run.accounts.reach)
    yield from _keep_planned(run, pin, step, position)
    is_planned = run.accounts.windows_left(position) >= run.pipeline.train.global_batch
    run.data.gate = first_closed(run.data.launchable(pin, is_planned=is_planned))


def _keep_planned(run: Run, pin: DatasetPin | None, step: int, position: Position) -> Iterator[Job]:
    """Extends the plan ahead of the trainer, only from the dataset that the run began with.

    Writes the sets needed from the newest checkpoint on into consumed.json before a gate looks for them.
    """
    skips, reach = run.accounts.skips(), run.accounts.reach
    if pin is not None:
        run.store.check_pin(pin)
        if (proof := run.data.grow(pin, run.accounts.target(run.at, step, position))) is not None:
            yield proof
    here = run.at.position
    later = () if reach is None else run.planner.needed(reach, skips)
    run.planner.note_wants(run.planner.needed(here, skips, upto=reach), later)
    run.accounts.keep(run.at)
