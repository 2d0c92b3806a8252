"""Answers the operators' requests to the train supervisor: at once, except rollbacks.

A rollback is accepted while the trainer runs, and made and answered once no process of the run is alive.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.mirror.layout import Mirrored, fallback
from stoker.checkpoints.retention import abandoned, find_checkpoints
from stoker.corpus.quarantine.directory import DROP, read_quarantine
from stoker.corpus.records.sources import Source
from stoker.kit.events import Alerts
from stoker.plan.timelines import Timeline, ancestry
from stoker.shards.format.identity import set_key
from stoker.store.errors import DataError, StorageError, Transient
from stoker.store.files import remove_tree
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.requests import Request
from stoker.supervise import rollback
from stoker.supervise.decide import AskedRollback
from stoker.supervise.rollback import Ask, Moved, RollbackRefused, Standing
from stoker.supervise.run.record import BY_TRAINER
from stokerd.common.loop import RequestBox
from stokerd.supervision.run import Run

LOOK_S = 1.0
COMPLAINT_S = 60.0
ROLLBACKS = ("rollback", "skip_set")


class Requests:
    """Reads and answers requests; the only writer of timelines.jsonl, and moves checkpoints to abandoned/."""

    def __init__(self, run: Run) -> None:
        self.run, self.events = run, run.events
        self.box = RequestBox(run.pipeline.layout, TRAIN_SUPERVISOR, run.events)
        self.handlers = {
            **dict.fromkeys(ROLLBACKS, self._consider),
            **{"pause": self._pause, "resume": self._resume, DROP: self._drop},
        }
        self.alerts = Alerts(run.events, COMPLAINT_S)
        self._look_at = 0.0

    def look(self) -> None:
        """Answers new requests; while the disk cannot be written, they stay for a later call.

        A pipeline file that has changed speaks for a halted run, as a request does.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            if self.run.store.is_file_changed:
                self._go_on("the pipeline file has changed", paused=self.run.store.begun.paused)
            self.box.answer(self.handlers)
        except StorageError as problem:
            self.alerts.raise_("storage_trouble", message=str(problem))

    def take_up(self) -> None:
        """Restores lost timelines, finishes an interrupted rollback, accepts rollbacks asked meanwhile."""
        run = self.run
        if restored := rollback.restore_lost(run.layout):
            self.events.record("timelines_restored", "warning", forks=restored, source="checkpoints")
        timelines = run.accounts.timelines()
        if abandoned(find_checkpoints(run.layout.checkpoints), ancestry(timelines)):
            self._report_moved(timelines.forks[-1], rollback.finish(run.layout, run.pipeline.quarantine))
        run.change(rollbacks=tuple(request.id for request in self._rollbacks()))

    def next_rollback(self) -> AskedRollback | None:
        """Returns the next rollback to make, with the checkpoint it goes back to."""
        request = next(iter(self._rollbacks()), None)
        if request is None:
            return None
        try:
            ask = self._ask(request)
        except (RollbackRefused, DataError):
            return AskedRollback(request.id, 0)
        if not ask.to or self.run.store.record is None or self._made(ask) is not None:
            return AskedRollback(request.id, ask.to)
        is_here, copy = ask.to in self._standing().steps, self._copy(ask.to)
        return AskedRollback(request.id, ask.to, checkpoint_name(ask.to), is_here, copy)

    def roll_back(self, request_id: str) -> bool:
        """Makes or refuses a rollback and answers; returns True when made. Stop all workers before."""
        run = self.run
        if (decided := self._decided_by_policy()) is not None and request_id == decided["id"]:
            return self._roll_back_by_policy()
        request = next((one for one in self._rollbacks() if one.id == request_id), None)
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
                self.events.record("rolled_back", "warning", **words, reason=fork.reason, request=request.id)
        except (RollbackRefused, DataError, Transient) as refusal:
            is_made, outcome = False, self._refused(request, refusal)
        self.box.finish(request, outcome)
        return is_made

    def of_policy(self) -> AskedRollback | None:
        """Returns the rollback that the policy decided on and that is not made yet."""
        if (decided := self._decided_by_policy()) is None:
            return None
        to = decided["to"]
        name = checkpoint_name(to) if to else ""
        return AskedRollback(decided["id"], to, name, to in self._standing().steps, self._copy(to))

    def _decided_by_policy(self) -> Mapping[str, Any] | None:
        return self.run.store.record.fork if self.run.store.record is not None else None

    def _roll_back_by_policy(self) -> bool:
        """Makes the rollback that the policy decided on; returns False where it cannot be made any more."""
        run, decided = self.run, self._decided_by_policy() or {}
        asked = {key: decided[key] for key in ("to", "skip", "reason", "timeline")}
        ask = Ask(**asked, request=decided["id"])
        try:
            if (fork := self._made(ask)) is None:
                fork = self._decided(ask)
                self._make(fork, halted=run.store.begun.halted)
        except (RollbackRefused, DataError, Transient) as refusal:
            self.events.record("rollback_refused", "warning", request=ask.request, message=str(refusal))
            run.store.change(fork=None)
            return False
        run.store.change(fork=None)
        windows = rollback.skipped_windows(run.planner.plan, fork.skip)
        words = {"timeline": fork.number, "to": fork.from_step, "windows": windows}
        self.events.record(
            "windows_skipped" if fork.skip else "rolled_back", "warning", **words, reason=fork.reason
        )
        return True

    def longer_horizon(self) -> AskedRollback | None:
        """Returns the way back to where the decay of wsd began, if the horizon is longer now."""
        run = self.run
        if not run.state.is_settled or run.state.is_decay_kept:
            return None
        if (to := run.accounts.longer_from(run.at)) is None:
            return None
        return AskedRollback("", to, checkpoint_name(to), to in self._standing().steps, self._copy(to))

    def lengthen(self) -> bool:
        """Begins the timeline of a longer horizon; returns False where the run goes on from its newest."""
        run, steps = self.run, self.run.pipeline.train.steps
        to, left = run.accounts.longer_from(run.at), run.at.step
        if to is None:
            return False
        try:
            self._make(self._decided(Ask(to, reason=f"longer horizon: {steps} steps")))
        except (RollbackRefused, DataError, Transient) as refusal:
            message = f"it goes on from step {left}, whose learning rate has decayed: {refusal}"
            self.events.record("milestone_missing", "warning", step=to, steps=steps, message=message)
            return False
        message = "the steps of the old decay are given up, and made again at the full rate"
        self.events.record("horizon_longer", "warning", step=to, left=left, steps=steps, message=message)
        return True

    def _make(self, fork: Timeline, halted: Mapping[str, Any] | None = None) -> Moved:
        """Makes a decided rollback, of a run that stays halted or goes on."""
        self.run.store.rolled_back(fork.from_step, halted=halted)
        moved = rollback.roll_back(self.run.layout, fork, self.run.pipeline.quarantine)
        self._report_moved(fork, moved)
        return moved

    def _consider(self, request: Request) -> Mapping[str, Any] | None:
        """Refuses a rollback that cannot be made; accepts any other, for when the trainer has ended."""
        run = self.run
        if request.id in run.state.rollbacks:
            return None
        try:
            ask = self._ask(request)
            is_fetched_first = ask.to not in self._standing().steps and self._copy(ask.to) is not None
            if self._made(ask) is None and not (ask.to and is_fetched_first):
                self._decide(ask)
        except (RollbackRefused, DataError) as refusal:
            return self._refused(request, refusal)
        run.checkpoints.kept.add(checkpoint_name(ask.to))
        self.events.record("rollback_asked", request=request.id, to=ask.to, by=request.by, reason=ask.reason)
        run.change(rollbacks=(*run.state.rollbacks, request.id), retry_at=0.0)
        return None

    def _rollbacks(self) -> list[Request]:
        return [request for request in self.box.read() if request.verb in ROLLBACKS]

    def _ask(self, request: Request) -> Ask:
        return rollback.parse_ask(request, self._standing().steps)

    def _made(self, ask: Ask) -> Timeline | None:
        return rollback.already(ask, self.run.accounts.timelines())

    def _standing(self) -> Standing:
        batch = self.run.pipeline.train.global_batch
        return rollback.standing(self.run.layout, self.run.planner.plan, batch)

    def _decide(self, ask: Ask) -> Timeline:
        """Returns the timeline that the rollback begins; raises RollbackRefused where it cannot be made."""
        if self.run.store.record is None:
            raise RollbackRefused("the run has not begun: there is nothing to go back from")
        pin, sources = self.run.planner.pin() if ask.lost else None, dict[str, Source]()
        if pin is not None:
            build_id = pin.build_id
            found = self.run.planner.sources().values()
            sources = rollback.by_key(found, lambda sha256: set_key(sha256, build_id))
        return rollback.decide(ask, self._standing(), sources)

    def _decided(self, ask: Ask) -> Timeline:
        """Returns the timeline that the rollback begins; raises unless its checkpoint is here and proven."""
        state, steps = self.run.state, self._standing().steps
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
        self.events.record("rollback_refused", "warning", request=request.id, message=str(refusal))
        return {"refused": str(refusal)}

    def _report_moved(self, fork: Timeline, moved: Moved) -> None:
        self.run.checkpoints.forget_missing()
        if moved.names or moved.dropped:
            words = {"names": list(moved.names), "dropped": list(moved.dropped)}
            self.events.record("checkpoints_abandoned", "warning", timeline=fork.parent, **words)

    def _pause(self, request: Request) -> Mapping[str, Any]:
        """Has the trainer seal a checkpoint and end, and none launched until the run is resumed."""
        run, record = self.run, self.run.store.record
        if record is None or record.state in ("finished", "failed"):
            return {"refused": f"the run {'is ' + record.state if record else 'has not begun'}"}
        if record.paused is None:
            run.store.pause(request.by)
            self.events.record("run_paused", "warning", by=request.by, step=run.at.step)
        return {"paused": True, "trains": run.state.live is not None}

    def _resume(self, request: Request) -> Mapping[str, Any]:
        record = self.run.store.record
        is_over = record is not None and record.finished != BY_TRAINER
        if record is None or (is_over and not record.held):
            return {"resumed": False}
        self._go_on(f"asked for by {request.by}")
        return {"resumed": True}

    def _go_on(self, why: str, paused: Mapping[str, Any] | None = None) -> None:
        """Allows launches again."""
        run = self.run
        was = run.store.begun.held or run.store.begun.state
        run.store.resume(paused=paused)
        run.change(failures=0, retry_at=0.0)
        self.events.record("run_resumed", message=why, was=was)

    def _drop(self, request: Request) -> Mapping[str, Any]:
        """Removes a quarantined checkpoint with its reason; a missing one counts as removed."""
        name, quarantine = str(request.args.get("name")), self.run.pipeline.layout.quarantine
        kept = next((one for one in read_quarantine(quarantine) if one.name == name), None)
        if kept is None:
            return {"dropped": name, "bytes": 0}
        if kept.kind != "checkpoint":
            return {"refused": f"{name} is no checkpoint; the stage-shard loop keeps what else there is"}
        remove_tree(quarantine / name)
        why = f"asked for by {request.by}"
        self.events.record(
            "quarantine_dropped", kind=kept.kind, path=kept.path, folder=name, bytes=kept.bytes, why=why
        )
        return {"dropped": name, "bytes": kept.bytes}
