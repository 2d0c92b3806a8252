"""Rollbacks: requested also while the trainer runs, and made when nothing of the run is alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.select import abandoned, find_checkpoints
from stoker.kit.events import Events
from stoker.plan.timelines import Timeline, ancestry
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError, Transient
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request, finish_request, pending_requests
from stoker.supervise.decide import AskedRollback
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
from stokerd.supervision.run import Run

VERBS = ("rollback", "skip_set")


class Rollbacks:
    """The only writer of timelines.jsonl, which moves checkpoints to abandoned/."""

    def __init__(self, run: Run, events: Events) -> None:
        self.run, self.events = run, events

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """Refuse at once what cannot be made, or accept it: what is under way ends, and it is made then."""
        if request.id in self.run.state.rollbacks:
            return None
        try:
            ask = self._ask(request)
            if already(ask, self.run.accounts.timelines()) is None:
                self._check(ask)
        except (RollbackRefused, DataError) as refusal:
            return self._refused(request, refusal)
        self.run.checkpoints.kept.add(checkpoint_name(ask.to))
        self.events.record("rollback_asked", request=request.id, to=ask.to, by=request.by, reason=ask.reason)
        self.run.change(rollbacks=(*self.run.state.rollbacks, request.id), retry_at=0.0)
        return None

    def take_up(self) -> None:
        """Bring lost lines back, and finish a rollback that was interrupted."""
        if restored := restore_lost(self.run.layout):
            self.events.record("timelines_restored", "warning", forks=restored, source="checkpoints")
        timelines = self.run.accounts.timelines()
        if abandoned(find_checkpoints(self.run.layout.checkpoints), ancestry(timelines)):
            self._report_moved(timelines.forks[-1], finish(self.run.layout, self.run.pipeline.quarantine))

    def pending(self) -> tuple[str, ...]:
        """The ids of the rollbacks that are asked for."""
        return tuple(request.id for request in self._pending())

    def next(self) -> AskedRollback | None:
        """The next rollback to make, and what it goes back to."""
        return next((self._asked(request) for request in self._pending()), None)

    def _pending(self) -> list[Request]:
        found = pending_requests(self.run.pipeline.layout, TRAIN_SUPERVISOR)
        return [request for request in found if request.verb in VERBS]

    def _asked(self, request: Request) -> AskedRollback:
        try:
            ask = self._ask(request)
        except (RollbackRefused, DataError):
            return AskedRollback(request.id, 0)
        is_made = already(ask, self.run.accounts.timelines()) is not None
        if not ask.to or self.run.store.record is None or is_made:
            return AskedRollback(request.id, ask.to)
        is_here, copy = ask.to in self._standing().steps, self._copy(ask.to)
        return AskedRollback(request.id, ask.to, checkpoint_name(ask.to), is_here, copy)

    def make(self, request_id: str) -> bool:
        """Make a rollback, or refuse it, and answer; True when it was made. Stop all workers before."""
        request = next((one for one in self._pending() if one.id == request_id), None)
        if request is None:
            return False
        is_made = True
        try:
            ask = self._ask(request)
            fork = already(ask, self.run.accounts.timelines())
            if fork is not None:
                outcome = outcome_of(fork, self.run.planner.plan, ())
            else:
                fork = self._decided(ask)
                self.run.store.rolled_back(fork.from_step)
                moved = roll_back(self.run.layout, fork, self.run.pipeline.quarantine)
                outcome = outcome_of(fork, self.run.planner.plan, moved.names)
                self._report_moved(fork, moved)
                words = {key: value for key, value in outcome.items() if key != "moved"}
                self.events.record("rolled_back", "warning", **words, reason=fork.reason, request=request.id)
        except (RollbackRefused, DataError, Transient) as refusal:
            is_made, outcome = False, self._refused(request, refusal)
        finish_request(self.run.pipeline.layout, TRAIN_SUPERVISOR, request, outcome)
        return is_made

    def _ask(self, request: Request) -> Ask:
        if request.verb == "rollback":
            return parse_ask(request.args, request.condition, request.id)
        return parse_skip_set(request.args, request.condition, self._standing().steps, request.id)

    def _standing(self) -> Standing:
        batch = self.run.pipeline.train.global_batch
        return standing(self.run.layout, self.run.planner.plan, batch)

    def _decide(self, ask: Ask, found: Standing) -> Timeline:
        if ask.lost and (pin := self.run.planner.pin()) is not None:
            build_id = pin.build_id
            sources = by_key(self.run.planner.sources().values(), lambda sha256: set_key(sha256, build_id))
            require_lost(lost_key(ask, found), sources)
        return decide(ask, found)

    def _check(self, ask: Ask) -> None:
        """RollbackRefused where it can be seen already that it cannot be made."""
        found = self._begun()
        if ask.to and ask.to not in found.steps and self._copy(ask.to) is not None:
            ask = Ask(0, (), ask.reason, ask.timeline)  # the rest is judged once it was fetched
        self._decide(ask, found)

    def _decided(self, ask: Ask) -> Timeline:
        """The line, once the checkpoint gone back to is here and proven."""
        found, state = self._begun(), self.run.state
        if ask.to and ask.to not in found.steps and state.look == "failed":
            raise Transient(state.look_problem)
        fork = self._decide(ask, found)
        if fork.from_step and state.proofs.get(checkpoint_name(fork.from_step)) != "proven":
            left = set(found.steps) - {fork.from_step}
            raise RollbackRefused(
                f"the checkpoint of step {fork.from_step} is not proven whole (the events say more); "
                f"{possible(left)}"
            )
        return fork

    def _begun(self) -> Standing:
        if self.run.store.record is None:
            raise RollbackRefused("the run has not begun: there is nothing to go back from")
        return self._standing()

    def _copy(self, step: int) -> Mirrored | None:
        """The copy of a step of this history in the mirror, as far as is known."""
        copies = self.run.mirror.copies if self.run.mirror is not None else ()
        found = fallback(copies, self.run.accounts.history(), step - 1)
        return next((one for one in found if one.step == step), None)

    def _refused(self, request: Request, refusal: Exception) -> dict[str, Any]:
        self.events.record("rollback_refused", "warning", request=request.id, message=str(refusal))
        return {"refused": str(refusal)}

    def _report_moved(self, fork: Timeline, moved: Moved) -> None:
        self.run.checkpoints.forget_missing()
        if moved.names or moved.dropped:
            self.events.record(
                "checkpoints_abandoned",
                "warning",
                timeline=fork.parent,
                names=list(moved.names),
                dropped=list(moved.dropped),
            )
