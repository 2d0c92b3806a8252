"""The rollbacks of a run: asked for by an operator, decided on by the policy, or for a longer horizon.

One that an operator asks for is accepted while the trainer runs; each is made once no process of the run is
alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.retention import abandoned, find_checkpoints
from stoker.corpus.records.sources import Source
from stoker.plan.timelines import Timeline, ancestry
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError, Transient
from stoker.store.requests import Request
from stoker.supervise import rollback
from stoker.supervise.lost_sets import by_key
from stoker.supervise.observation import AskedRollback
from stoker.supervise.rollback import Moved, RollbackContext, RollbackRefused, RollbackRequest
from stokerd.common.loop import RequestBox
from stokerd.supervision.run import Run

VERBS = ("rollback", "skip_set")


class Rollbacks:
    """The only writer of timelines.jsonl; moves checkpoints to abandoned/."""

    def __init__(self, run: Run, box: RequestBox) -> None:
        self.run, self.events, self.box = run, run.events, box

    def take_up(self) -> None:
        """Restores lost timelines, finishes an interrupted rollback, accepts rollbacks asked meanwhile."""
        run = self.run
        if restored := rollback.restore_lost(run.layout):
            self.events.record("run_file_restored", what="timelines", forks=restored, source="checkpoints")
        timelines = run.accounts.timelines()
        if abandoned(find_checkpoints(run.layout.checkpoints), ancestry(timelines)):
            self._report_moved(timelines.forks[-1], rollback.finish(run.layout, run.pipeline.quarantine))
        run.change(rollbacks=tuple(request.id for request in self._requests()))

    def next(self) -> AskedRollback | None:
        """Returns the next rollback to make, with the checkpoint it goes back to."""
        return self.of_request() or self.of_policy() or self.of_horizon()

    def make(self, request: str) -> bool:
        """Makes or refuses the rollback of this id, "": that of a longer horizon; returns True when made.

        Stop all workers before.
        """
        if not request:
            return self._make_of_horizon()
        decided = self._decided_by_policy()
        is_policys = decided is not None and request == decided["id"]
        return self._make_of_policy() if is_policys else self._make_of_request(request)

    def of_request(self) -> AskedRollback | None:
        """Returns the oldest rollback that an operator asks for."""
        request = next(iter(self._requests()), None)
        if request is None:
            return None
        try:
            ask = self._ask(request)
        except (RollbackRefused, DataError):
            return AskedRollback(request.id, 0)
        if self.run.store.record is None or self._made(ask) is not None:
            return AskedRollback(request.id, ask.to)
        return self._asked(request.id, ask.to)

    def of_policy(self) -> AskedRollback | None:
        """Returns the rollback that the policy decided on and that is not made yet."""
        decided = self._decided_by_policy()
        return None if decided is None else self._asked(decided["id"], decided["to"])

    def _decided_by_policy(self) -> Mapping[str, Any] | None:
        return self.run.store.record.fork if self.run.store.record is not None else None

    def of_horizon(self) -> AskedRollback | None:
        """Returns the way back to where the decay of wsd began, if the horizon is longer now."""
        run = self.run
        if not run.state.is_settled or run.state.is_decay_kept:
            return None
        to = run.accounts.longer_from(run.at)
        return None if to is None else self._asked("", to)

    def _asked(self, request: str, to: int) -> AskedRollback:
        if not to:
            return AskedRollback(request, to)
        return AskedRollback(request, to, checkpoint_name(to), to in self._context().steps, self._copy(to))

    def _make_of_request(self, request_id: str) -> bool:
        """Makes or refuses a rollback and answers."""
        run = self.run
        request = next((one for one in self._requests() if one.id == request_id), None)
        if request is None:
            return False
        is_made = True
        try:
            ask = self._ask(request)
            if (fork := self._made(ask)) is not None:
                outcome = rollback.outcome_of(fork, run.planner.plan, ())
            else:
                fork = self._decided(ask)
                moved = self._make(fork)
                outcome = rollback.outcome_of(fork, run.planner.plan, moved.names)
                words = {key: value for key, value in outcome.items() if key != "moved"}
                self.events.record("rolled_back", **words, reason=fork.reason, request=request.id)
        except (RollbackRefused, DataError, Transient) as refusal:
            is_made, outcome = False, self._refused(request, refusal)
        self.box.finish(request, outcome)
        return is_made

    def _make_of_policy(self) -> bool:
        """Makes the rollback that the policy decided on; returns False where it cannot be made any more."""
        run, decided = self.run, self._decided_by_policy() or {}
        asked = {key: decided[key] for key in ("to", "skip", "reason", "timeline")}
        ask = RollbackRequest(**asked, request=decided["id"])
        try:
            if (fork := self._made(ask)) is None:
                fork = self._decided(ask)
                self._make(fork, halted=run.store.begun.halted)
        except (RollbackRefused, DataError, Transient) as refusal:
            self.events.record("rollback_refused", request=ask.request, message=str(refusal))
            run.store.change(fork=None)
            return False
        run.store.change(fork=None)
        windows = rollback.skipped_windows(run.planner.plan, fork.skip)
        words = {"timeline": fork.number, "to": fork.from_step, "windows": windows}
        self.events.record("windows_skipped" if fork.skip else "rolled_back", **words, reason=fork.reason)
        return True

    def _make_of_horizon(self) -> bool:
        """Begins the timeline of a longer horizon; returns False where the run goes on from its newest."""
        run, steps = self.run, self.run.pipeline.train.steps
        to, left = run.accounts.longer_from(run.at), run.at.step
        if to is None:
            return False
        try:
            self._make(self._decided(RollbackRequest(to, reason=f"longer horizon: {steps} steps")))
        except (RollbackRefused, DataError, Transient) as refusal:
            message = f"it continues from step {left}, whose learning rate has decayed: {refusal}"
            self.events.record("milestone_missing", step=to, steps=steps, message=message)
            return False
        self.events.record("horizon_longer", step=to, left=left, steps=steps)
        return True

    def _make(self, fork: Timeline, halted: Mapping[str, Any] | None = None) -> Moved:
        """Makes a decided rollback, of a run that stays halted or goes on."""
        self.run.store.rolled_back(fork.from_step, halted=halted)
        moved = rollback.roll_back(self.run.layout, fork, self.run.pipeline.quarantine)
        self._report_moved(fork, moved)
        return moved

    def consider(self, request: Request) -> Mapping[str, Any] | None:
        """Refuses a rollback that cannot be made; accepts any other, for when the trainer has ended."""
        run = self.run
        if request.id in run.state.rollbacks:
            return None
        try:
            ask = self._ask(request)
            is_fetched_first = ask.to not in self._context().steps and self._copy(ask.to) is not None
            if self._made(ask) is None and not (ask.to and is_fetched_first):
                self._decide(ask)
        except (RollbackRefused, DataError) as refusal:
            return self._refused(request, refusal)
        run.checkpoints.kept.add(checkpoint_name(ask.to))
        self.events.record("rollback_asked", request=request.id, to=ask.to, by=request.by, reason=ask.reason)
        run.change(rollbacks=(*run.state.rollbacks, request.id), retry_at=0.0)
        return None

    def _requests(self) -> list[Request]:
        return [request for request in self.box.read() if request.verb in VERBS]

    def _ask(self, request: Request) -> RollbackRequest:
        return rollback.parse_request(request, self._context().steps)

    def _made(self, ask: RollbackRequest) -> Timeline | None:
        return rollback.already(ask, self.run.accounts.timelines())

    def _context(self) -> RollbackContext:
        batch = self.run.pipeline.train.global_batch
        return rollback.rollback_context(self.run.layout, self.run.planner.plan, batch)

    def _decide(self, ask: RollbackRequest) -> Timeline:
        """Returns the timeline that the rollback begins; raises RollbackRefused where it cannot be made."""
        if self.run.store.record is None:
            raise RollbackRefused("the run has not begun: there is nothing to go back from")
        pin, sources = self.run.planner.pin() if ask.lost else None, dict[str, Source]()
        if pin is not None:
            build_id = pin.build_id
            found = self.run.planner.sources().values()
            sources = by_key(found, lambda sha256: set_key(sha256, build_id))
        return rollback.decide(ask, self._context(), sources)

    def _decided(self, ask: RollbackRequest) -> Timeline:
        """Returns the timeline that the rollback begins; raises unless its checkpoint is here and proven."""
        state, steps = self.run.state, self._context().steps
        if ask.to and ask.to not in steps and state.look == "failed":
            raise Transient(state.look_problem)
        fork = self._decide(ask)
        if fork.from_step and state.proofs.get(checkpoint_name(fork.from_step)) != "proven":
            raise RollbackRefused(
                f"the checkpoint of step {fork.from_step} is not proven whole (the events say more); "
                f"{rollback.possible(set(steps) - {fork.from_step})}"
            )
        return fork

    def _copy(self, step: int) -> Mirrored | None:
        """Returns the mirror's copy of a step of the current history, if the last listing had it."""
        copies = self.run.mirror.copies if self.run.mirror is not None else ()
        found = fallback(copies, self.run.accounts.history(), step - 1)
        return next((one for one in found if one.step == step), None)

    def _refused(self, request: Request, refusal: Exception) -> dict[str, Any]:
        self.events.record("rollback_refused", request=request.id, message=str(refusal))
        return {"refused": str(refusal)}

    def _report_moved(self, fork: Timeline, moved: Moved) -> None:
        self.run.checkpoints.forget_missing()
        if moved.names or moved.dropped:
            words = {"names": list(moved.names), "dropped": list(moved.dropped)}
            self.events.record("checkpoints_abandoned", timeline=fork.parent, **words)
