"""What the supervisor knows of its run in one cycle: the facts by which `decide` chooses."""

from __future__ import annotations

from dataclasses import replace

from stoker.checkpoints.mirror.layout import fallback
from stoker.checkpoints.retention import counts
from stoker.supervise.health.exits import ExitClass, GuardedEnd
from stoker.supervise.observation import Observation
from stoker.supervise.run.launch_record import passes_a_phase
from stoker.supervise.run.record import BY_TRAINER
from stoker.supervise.state import Phase
from stokerd.supervision import policies
from stokerd.supervision.effects import Effects
from stokerd.supervision.run import Run


def observe(run: Run, effects: Effects, end: GuardedEnd | None) -> Observation:
    """Returns the facts for `decide`; `end` is the end of the trainer, if it has ended."""
    record, live = run.store.record, run.state.live
    seen = Observation(
        kind=run.kind,
        is_stopping=run.context.stopping,
        is_once=run.context.once,
        until=run.context.until,
        jobs=tuple(run.jobs.values()),
        fruitless=record.fruitless if record else 0,
        best_step=record.best_step if record else 0,
        held=record.held if record else "",
        is_halted=record is not None and record.halted is not None,
        is_forking=record is not None and record.fork is not None,
        is_outdated=live is not None and passes_a_phase(live.launch, run.pipeline.train),
        newest=run.at.path.name,
        step=run.at.step,
        end=end,
    )
    match run.state.phase:
        case Phase.CLEANING:
            return replace(seen, left=effects.leftovers())
        case Phase.PROVING:
            if (awaited := effects.jobs.awaited()) is not None:
                return replace(seen, awaited=awaited)
            if (rollback := effects.rollbacks.next()) is not None:
                return replace(seen, rollback=rollback, look="no" if run.mirror is None else "try")
            return _proving(run, seen)
        case Phase.WAITING:
            awaited = effects.jobs.awaited()
            return replace(seen, over=run.accounts.over(run.at), gate=run.data.gate, awaited=awaited)
        case Phase.FINISHED if record is not None and record.state != "finished":
            return replace(seen, goes_on=True)
        case Phase.FINISHED if not run.state.is_at_rest:
            return replace(seen, awaited=effects.jobs.awaited())
        case _:
            return seen


def _proving(run: Run, seen: Observation) -> Observation:
    """Returns the facts by which a checkpoint is chosen."""
    history = run.accounts.history()
    if run.state.is_settled:
        exit_, over = run.state.exit, run.accounts.over(run.at)
        if exit_ is not None and exit_.kind is ExitClass.FINISHED and run.kind.ends_run:
            over = over or BY_TRAINER
        return replace(seen, over=over, facts=policies.facts(run) if exit_ is not None else seen.facts)
    name, has_rejected = run.checkpoints.newest_candidate(history), "invalid" in run.state.proofs.values()
    newest = run.checkpoints.get(name)
    seen = replace(
        seen,
        candidate=name,
        is_on_history=newest is None or counts(int(newest.body["timeline"]), newest.step, history),
        why_not_from_start="" if name else run.accounts.why_not_from_start(has_rejected=has_rejected),
    )
    if run.mirror is None:
        return seen
    step = newest.step if newest is not None else None
    look = run.mirror.to_look(step, history, has_rejected=has_rejected)
    newer = fallback(run.mirror.copies, history, -1 if step is None else step)
    return replace(seen, look=look, newer=policies.newest_usable(run, newer))
