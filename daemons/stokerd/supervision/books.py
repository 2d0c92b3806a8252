"""Plan, checkpoints and consumed.json, kept while the run waits for data, trains, or is over.

What is to be proven is returned as jobs; what is written is written here, for `Effects`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from stoker.corpus.records.pin import DatasetPin
from stoker.kit.events import Events
from stoker.plan.positions import Position
from stoker.supervise.actions import Job, ProveCheckpoint
from stoker.supervise.run.gates import Gate, first_closed
from stoker.supervise.state import Phase
from stokerd.supervision.data import SetLost
from stokerd.supervision.run import Run


def prune_and_keep(run: Run, events: Events) -> None:
    """Prune what a proven checkpoint makes superfluous, which makes room, and keep consumed.json true."""
    for step in run.checkpoints.prune():
        events.record("checkpoint_pruned", step=step)
    run.accounts.keep(run.at)


def keep(run: Run, events: Events, now: float) -> Iterator[Job]:
    """One look at what the phase needs kept."""
    if run.state.phase is Phase.WAITING:
        yield from _keep_waiting(run, events)
        return
    if name := run.checkpoints.unproven(run.accounts.history(), now):
        yield ProveCheckpoint(name)
    prune_and_keep(run, events)
    if (trainer := run.state.live) is not None:
        position = trainer.position or run.at.position
        if trainer.step > trainer.launch.resume_step:  # what precedes it is no part of its pace
            run.accounts.moved(position)
        yield from _keep_planned(run, run.planner.pin(), trainer.step, position)


def _keep_waiting(run: Run, events: Events) -> Iterator[Job]:
    pin = run.planner.pin()
    try:
        if run.store.record is None:
            yield from _prepare(run, events, pin)
        else:
            yield from _gather(run, pin)
    except SetLost as lost:
        run.data.gate = Gate("hopeless", str(lost))


def _prepare(run: Run, events: Events, pin: DatasetPin | None) -> Iterator[Job]:
    """A new run: wait until there is enough data, and hold windows out of it."""
    data, state = run.data, run.state
    if not state.is_gate_open:
        data.gate = data.start(pin)
        if data.gate.state != "open":
            return
        events.record("start_gate_open", message=data.gate.why)
        run.state = replace(state, is_gate_open=True)
    if pin is None:
        data.gate = Gate("closed", "waiting for the dataset's pin")
        return
    job = data.need_heldout(pin)
    if job is None or state.is_heldout_copied:
        identity = run.store.new_identity(pin)
        run.store.begin(identity, state.heldout)
        run.planner.belongs_to(identity.run_id)
        yield from _gather(run, pin)
        return
    data.gate = data.heldout(pin)
    run.planner.note_wants(data.needed, data.needed)  # no plan holds them on hot yet
    run.accounts.keep(run.at)
    if (proof := data.to_prove()) is not None:
        yield proof
    if data.gate.state == "open":
        data.gate = Gate("closed", "copying held-out windows")
        if time.monotonic() >= state.heldout_retry_at:
            yield job


def _gather(run: Run, pin: DatasetPin | None) -> Iterator[Job]:
    """See to everything a launch reads."""
    step, position = run.at.step, run.at.position
    run.data.need(position, run.accounts.skips())
    run.accounts.reach = run.data.window.reach
    yield from _keep_planned(run, pin, step, position)
    left = run.accounts.windows_left(run.at)
    is_planned = left >= run.pipeline.train.global_batch
    run.data.gate = first_closed(run.data.launchable(pin, is_planned=is_planned))


def _keep_planned(run: Run, pin: DatasetPin | None, step: int, position: Position) -> Iterator[Job]:
    """Keep the plan ahead of the trainer, from the dataset that the run began with and no other.

    What is needed hot, from the newest checkpoint on, is written down before it is looked for there.
    """
    skips, reach = run.accounts.skips(), run.data.window.reach
    if pin is not None:
        run.store.check_pin(pin)
        outlook = run.accounts.outlook(step, position, run.accounts.steps(run.at))
        if (proof := run.data.grow(pin, outlook)) is not None:
            yield proof
    here = run.at.position
    later = () if reach is None else run.planner.needed(reach, skips)
    run.planner.note_wants(run.planner.needed(here, skips, upto=reach), later)
    run.accounts.keep(run.at)
