"""Rollbacks: asked for by request, also while the trainer runs, and made when nothing of the run is alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.select import abandoned, candidates, counts, find_checkpoints
from stoker.kit.context import DaemonContext
from stoker.plan.timelines import Timeline, Timelines, ancestry, read_timelines
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError, Transient
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request, finish_request, pending_requests
from stoker.supervise.rollback.apply import Moved, finish, restore_lost, roll_back, standing
from stoker.supervise.rollback.decide import (
    Ask,
    RollbackRefused,
    Standing,
    already,
    decide,
    lost_key,
    outcome_of,
    parse_ask,
    parse_skip_set,
    possible,
)
from stoker.supervise.rollback.lost_sets import by_key, require_lost
from stoker.supervise.run.planner import Planner
from stokerd.supervision.checkpoints import CheckpointDesk
from stokerd.supervision.cycle import Turns
from stokerd.supervision.run_store import RunBook

VERBS = ("rollback", "skip_set")


class RollbackDesk:
    """The one who writes timelines.jsonl and moves checkpoints to abandoned/."""

    def __init__(
        self, context: DaemonContext, turns: Turns, desk: CheckpointDesk, book: RunBook, planner: Planner
    ) -> None:
        self.layout, self.events, self.turns = context.layout, context.events, turns
        self.config, self.budget = context.pipeline.train, context.pipeline.quarantine
        self.run = context.layout.run(self.config.run)
        self.desk, self.book, self.planner = desk, book, planner
        self._coming: set[str] = set()  # requests that will be acted on

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """Refuse at once what cannot be; else end what is under way, and make it in the next round."""
        if request.id in self._coming:
            return None
        try:
            ask = self._ask(request)
            if already(ask, read_timelines(self.run.timelines)) is None:
                self._check(ask)
        except (RollbackRefused, DataError) as refusal:
            return self._refused(request, refusal)
        self._coming.add(request.id)
        self.desk.shelf.kept |= {one.path.name for one in self._candidates() if one.step == ask.to}
        self.events.record("rollback_asked", request=request.id, to=ask.to, by=request.by, reason=ask.reason)
        self.turns.changed = f"rolling back to step {ask.to}"
        return None

    def take_up(self) -> bool:
        """Finish a rollback that was interrupted and make those that are asked for; whether any was made.

        Called while this daemon holds the run's lock and before anything of the run is looked at.
        """
        self.turns.changed = ""
        if restored := restore_lost(self.run):
            self.events.record("timelines_restored", "warning", forks=restored, source="checkpoints")
        timelines = read_timelines(self.run.timelines)
        if abandoned(find_checkpoints(self.run.checkpoints), ancestry(timelines)):
            self.desk.let_go()
            self._tell_moved(timelines.forks[-1], finish(self.run, self.budget))
        asked = [one for one in pending_requests(self.layout, TRAIN_SUPERVISOR) if one.verb in VERBS]
        self._coming |= {request.id for request in asked}
        made = [self._act(request) for request in asked]
        return any(made)

    def _act(self, request: Request) -> bool:
        """Make one rollback, or refuse it; whether it was made."""
        made = True
        try:
            ask = self._ask(request)
            timelines = read_timelines(self.run.timelines)
            fork = already(ask, timelines)
            if fork is not None:
                outcome = outcome_of(fork, self.planner.plan, ())
            else:
                self.turns.doing = f"rolling back to step {ask.to}"
                fork = self._decided(ask, timelines)
                self.desk.let_go()
                self.book.rolled_back(fork.from_step)
                moved = roll_back(self.run, fork, self.budget)
                outcome = outcome_of(fork, self.planner.plan, moved.names)
                self._tell_moved(fork, moved)
                self.events.record(
                    "rolled_back",
                    "warning",
                    **{key: value for key, value in outcome.items() if key != "moved"},
                    reason=fork.reason,
                    request=request.id,
                )
        except (RollbackRefused, DataError, Transient) as refusal:
            made, outcome = False, self._refused(request, refusal)
        finish_request(self.layout, TRAIN_SUPERVISOR, request, outcome)
        self._coming.discard(request.id)
        return made

    def _ask(self, request: Request) -> Ask:
        if request.verb == "rollback":
            return parse_ask(request.args, request.condition, request.id)
        steps = standing(self.run, self.planner.plan, self.config.global_batch).steps
        return parse_skip_set(request.args, request.condition, steps, request.id)

    def _decide(self, ask: Ask, found: Standing) -> Timeline:
        if ask.lost and (pin := self.planner.pin()) is not None:
            build_id = pin.build_id
            sources = by_key(self.planner.sources(), lambda sha256: set_key(sha256, build_id))
            require_lost(lost_key(ask, found), sources)
        return decide(ask, found)

    def _check(self, ask: Ask) -> None:
        """RollbackRefused where it can be seen already that it cannot be made."""
        if self.book.record is None:
            raise RollbackRefused("the run has not begun: there is nothing to go back from")
        found = standing(self.run, self.planner.plan, self.config.global_batch)
        here = ask.to in found.steps or ask.to == 0
        if not here and ask.to in self._mirrored(found.timelines):
            ask = Ask(0, (), ask.reason, ask.timeline)  # the rest is judged once it was fetched
        self._decide(ask, found)

    def _decided(self, ask: Ask, timelines: Timelines) -> Timeline:
        """The line, once the checkpoint gone back to is here and proven: nothing is given up for less."""
        if self.book.record is None:
            raise RollbackRefused("the run has not begun: there is nothing to go back from")
        found = standing(self.run, self.planner.plan, self.config.global_batch)
        if ask.to and ask.to not in found.steps and self.desk.fetch_step(ask.to, ancestry(timelines)):
            found = standing(self.run, self.planner.plan, self.config.global_batch)
        fork = self._decide(ask, found)
        for one in self._candidates() if fork.from_step else ():
            if one.step == fork.from_step and self.desk.prove_now(one.path) != "proven":
                left = set(found.steps) - {one.step}
                raise RollbackRefused(
                    f"the checkpoint of step {one.step} is not proven whole (the events say more); "
                    f"{possible(left)}"
                )
        return fork

    def _candidates(self) -> list[Any]:
        history = ancestry(read_timelines(self.run.timelines))
        return candidates(find_checkpoints(self.run.checkpoints), history)

    def _mirrored(self, timelines: Timelines) -> set[int]:
        copies = self.desk.mirror.book.copies if self.desk.mirror is not None else ()
        history = ancestry(timelines)
        return {one.step for one in copies if counts(one.timeline, one.step, history)}

    def _refused(self, request: Request, refusal: Exception) -> dict[str, Any]:
        self.events.record("rollback_refused", "warning", request=request.id, message=str(refusal))
        return {"refused": str(refusal)}

    def _tell_moved(self, fork: Timeline, moved: Moved) -> None:
        self.desk.shelf.forget_missing()
        if moved.names or moved.dropped:
            self.events.record(
                "checkpoints_abandoned",
                "warning",
                timeline=fork.parent,
                names=list(moved.names),
                dropped=list(moved.dropped),
            )
