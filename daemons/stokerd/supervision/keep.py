"""Keeps a run's books while it waits and while it trains, and says which jobs that begins."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.config.checks import unusual_tokens
from stoker.corpus.records.dataset import DatasetPin
from stoker.plan.positions import START, Position
from stoker.supervise.actions import Job
from stoker.supervise.run.gates import Gate, first_closed
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.external import PREPARED
from stokerd.supervision.jobs.proofs import BEGUN_WITH
from stokerd.supervision.run import Run


def keep(run: Run) -> Iterator[Job]:
    """Brings plan, checkpoints and consumed.json up to date; yields the jobs that this needs."""
    if run.state.phase is Phase.WAITING:
        yield from _prepare(run) if run.kind.follows_plan else _prepare_external(run)
        return
    run.prune_and_keep()
    if (trainer := run.state.live) is not None and run.kind.follows_plan:
        position = trainer.position or run.at.position
        if trainer.step > trainer.launch.resume_step:  # the time before the first step is not training
            run.accounts.moved(position)
        yield from _keep_planned(run, run.planner.pin(), trainer.step, position)


def _prepare(run: Run) -> Iterator[Job]:
    pin, record = run.planner.pin(), run.store.record
    if record is None:
        yield from _begin(run, pin)
        return
    phase, job = run.pipeline.train.at(run.at.step), None
    if pin is not None and record.lacks_heldout(phase.name, phase.seq_len):
        job = run.data.need_heldout(pin, phase.seq_len, phase.name)
    yield from _gather(run, pin) if job is None else _hold_out(run, pin, job)


def _begin(run: Run, pin: DatasetPin | None) -> Iterator[Job]:
    """Begins a new run once the start gate is open and the held-out windows are copied."""
    data, state, begun_with = run.data, run.state, BEGUN_WITH.of(run)
    if not state.is_gate_open:
        data.gate = data.start(pin)
        if data.gate.state != "open":
            return
        run.events.record("start_gate_open", message=data.gate.why)
        run.change(is_gate_open=True)
    if pin is None:
        data.gate = Gate("closed", "waiting for the dataset's pin")
        return
    if (init_from := run.pipeline.train.init_from) is not None and begun_with.origin is None:
        data.gate = Gate("closed", f"proving {init_from}, whose parameters the run begins with")
        yield Job("origin", str(init_from))
        return
    job, held = data.need_heldout(pin, run.pipeline.train.seq_len), begun_with.heldout
    if job is None or held is not None:
        run.store.begin(pin, held if held is not None and held.windows else None, begun_with.origin)
        run.planner.belongs_to(run.store.begun.identity.run_id)
        _note_tokens(run, pin.tokenizer.vocab_size)
        yield from _gather(run, pin)
        return
    yield from _hold_out(run, pin, job)


def _hold_out(run: Run, pin: DatasetPin | None, job: Job) -> Iterator[Job]:
    """Has held-out windows copied as soon as the sets with them are on hot and proven."""
    data = run.data
    run.accounts.reach = START  # no launch reads the plan meanwhile: its sets make room on a small disk
    run.planner.note_wants(data.needed, data.needed)  # no entry of the plan may keep them on hot
    run.accounts.keep(run.at)
    data.gate = first_closed(data.launchable(pin))
    if (proof := data.to_prove()) is not None:
        yield proof
    if data.gate is None:
        data.gate = Gate("closed", "copying held-out windows")
        yield job


def _note_tokens(run: Run, vocab_size: int) -> None:
    """Records a horizon that is far from what is usual for the model."""
    train = run.pipeline.train
    if why := unusual_tokens(train, vocab_size):
        ratio = round(train.tokens_per_parameter(vocab_size), 2)
        words = {"tokens_per_parameter": ratio, "parameters": train.model.parameters(vocab_size)}
        run.events.record("tokens_per_parameter_unusual", **words, message=why)


def _gather(run: Run, pin: DatasetPin | None) -> Iterator[Job]:
    """Prepares the data that a launch reads, and sets the gate that is still closed."""
    step, position = run.at.step, run.at.position
    batch = run.pipeline.train.at(step).global_batch
    run.accounts.reach = run.data.need(position, run.accounts.skips(), run.accounts.reach, batch)
    yield from _keep_planned(run, pin, step, position)
    is_planned = run.accounts.windows_left(position) >= batch
    run.data.gate = first_closed(run.data.launchable(pin, is_planned=is_planned))


def _keep_planned(run: Run, pin: DatasetPin | None, step: int, position: Position) -> Iterator[Job]:
    """Extends the plan ahead of the trainer, only from the dataset that the run began with.

    Writes the sets needed from the newest checkpoint on into consumed.json before a gate looks for them.
    """
    if pin is not None:
        run.store.check_pin(pin)
        target, lengths = run.accounts.target(run.at, step, position), run.accounts.lengths(run.at)
        if (proof := run.data.grow(pin, target, *lengths)) is not None:
            yield proof
    note_wants(run)
    run.accounts.keep(run.at)


def note_wants(run: Run) -> None:
    """Has the sets brought to hot that are read from the newest checkpoint on."""
    skips, reach = run.accounts.skips(), run.accounts.reach
    later = () if reach is None else run.planner.needed(reach, skips)
    run.planner.note_wants(run.planner.needed(run.at.position, skips, upto=reach), later)


def _prepare_external(run: Run) -> Iterator[Job]:
    """Begins a new run; the trainer reads no plan, so there is no other gate."""
    run.data.gate = None
    if run.store.record is None:
        yield from _begin_external(run)
    run.accounts.keep(run.at)


def _begin_external(run: Run) -> Iterator[Job]:
    """Begins a new run as soon as the start gate of its dataset is open, or sets the gate that is closed."""
    external, gate = run.pipeline.train.external_trainer, Gate("open", "the trainer brings its own data")
    if run.pipeline.has_data:
        gate = run.data.start(run.planner.pin())
    if gate.state != "open":
        run.data.gate = gate
    elif external and external.checkpoints and not PREPARED.of(run).is_restored:
        # Before the record: begun on the checkpoints of another run, it could not be told where to begin.
        run.data.gate = Gate("closed", "looking at the trainer's directory")
        yield Job("restore")
    else:
        run.events.record("start_gate_open", message=gate.why)
        run.store.begin_external()
        run.planner.belongs_to(run.store.begun.identity.run_id)
