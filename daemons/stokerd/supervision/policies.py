"""Carries out what the policy decides about a launch's end; run.json has each decision first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import MARK_HEX, Mirrored
from stoker.checkpoints.retention import candidates, find_checkpoints
from stoker.store.record import new_id
from stoker.supervise.actions import AnswerEnd
from stoker.supervise.health.exits import ExitClass
from stoker.supervise.policy import SPIKE, Facts, Fork, Tried, remedy, skipped
from stoker.supervise.run.memorization import read_tail
from stokerd.supervision.run import Run


def facts(run: Run) -> Facts:
    """Returns the run as the policy sees it after a launch."""
    timelines, tried = run.accounts.timelines(), dict(run.store.begun.tried or {})
    if tried.get("again"):
        tried["again"] = tuple(tried["again"])
    found = candidates(find_checkpoints(run.layout.checkpoints), run.accounts.history())
    steps = tuple(one.step for one in found)
    spikes = skipped(timelines, SPIKE)
    tells_steps = not run.kind.follows_plan and any("step" in row for row in read_tail(run.layout.metrics))
    return Facts(timelines.current, Tried(**tried), skipped(timelines), steps, spikes, tells_steps)


def newest_usable(run: Run, copies: Iterable[Mirrored]) -> Mirrored | None:
    """Returns the first of these copies that was not set aside here as suspect."""
    suspects = run.store.record.suspects if run.store.record is not None else ()
    usable = (one for one in copies if f"{checkpoint_name(one.step)}-{one.mark}" not in suspects)
    return next(usable, None)


def halt(run: Run, reason: str, kind: str = "", **changes: Any) -> None:
    """Halts the run, in one write with other changes of its record."""
    about = remedy(ExitClass(kind) if kind else None, run.kind.remedies)
    run.store.change(**changes, **run.store.halted(reason, kind, about))
    words = {"class": kind, "remedy": about, "step": run.at.step}
    run.events.record("run_halted", message=reason, **words)


def answer(run: Run, action: AnswerEnd) -> None:
    """Writes the end of a launch and what follows it into the run's record, at once."""
    response, begun = action.response, run.store.begun
    changes: dict[str, Any] = {"fruitless": action.fruitless, "best_step": action.best_step}
    changes["tried"] = asdict(response.tried)
    if run.kind.ends_run and action.kind == ExitClass.FINISHED:
        changes |= run.store.by_trainer()
    if response.micro_batch is not None:
        asked = run.pipeline.train.at(run.at.step).micro_batch
        changes |= {"micro_batch": response.micro_batch, "micro_batch_of": asked}
    if response.fork is not None:
        changes["fork"] = fork_body(run, response.fork)
    if response.suspect:
        changes["suspect"] = {"name": response.suspect, "mark": run.at.digest[:MARK_HEX]}
    if response.puts_back:
        back = [mark for mark in begun.suspects if run.checkpoints.put_back(mark.rpartition("-")[0])]
        changes["suspects"] = [mark for mark in begun.suspects if mark not in back]
    if response.halt:
        halt(run, response.halt, action.kind, **changes)
        return
    run.store.change(**changes)
    if response.micro_batch is not None:
        sizes = {"before": run.state.trainer and run.state.trainer.evidence.micro_batch}
        sizes |= {"micro_batch": response.micro_batch}
        run.events.record("micro_batch_lowered", step=run.at.step, **sizes)


def fork_body(run: Run, fork: Fork) -> dict[str, Any]:
    """Returns a rollback for run.json, which is made before the next launch."""
    return asdict(fork) | {"id": new_id(), "timeline": run.accounts.timelines().current}


def set_aside(run: Run) -> None:
    """Moves a checkpoint that could not be loaded into quarantine, so that the one before it is used."""
    record = run.store.record
    if record is None or record.suspect is None:
        return
    name, mark = record.suspect["name"], record.suspect["mark"]
    if run.checkpoints.path(name).exists():
        moved = run.checkpoints.reject(name, "suspect: it is whole, and two launches could not load it")
        words = {"moved_to": str(moved.place), "dropped": list(moved.dropped)}
        run.events.record("checkpoint_suspect", path=f"checkpoints/{name}", **words)
    run.store.change(suspect=None, suspects=sorted({*record.suspects, f"{name}-{mark}"}))
