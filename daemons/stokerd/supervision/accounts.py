"""How far the run is: plan and record against the newest proven checkpoint, and consumed.json."""

from __future__ import annotations

import time
from typing import Any

from stoker.checkpoints.format import TIMELINES_COPY
from stoker.checkpoints.select import History
from stoker.kit.context import DaemonContext
from stoker.observe.ledger import Claim, write_claims
from stoker.plan.consumption import consumed_body
from stoker.plan.positions import Position, Skip, left_after, linear
from stoker.plan.residency import ahead_windows
from stoker.plan.timelines import Timelines, ancestry, read_timelines, restore_timelines, skips
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_or_set_aside, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.data_wait import DataWait
from stoker.supervise.run.horizon import finished_at, last_step
from stoker.supervise.run.launch_log import read_launches
from stoker.supervise.run.low_water import mark
from stoker.supervise.run.planner import Outlook, Planner
from stoker.supervise.run.rate import SOON_S, WindowRate
from stokerd.supervision.run_store import RunStore

# The sets of an entry are asked back this long before the trainer gets there: a gigabyte each, a dozen of
# them, come from a disk that is shared and gives 40 MB/s in five minutes; twice that for a retry.
LEAD_S = 600.0
SHORT_WAIT_S = 60.0  # a wait for data that is part of how fast a run gets on
RATE_CHANGE = 0.2  # a pace that changed by less is not worth a write


class Accounts:
    """Makes the run's record, plan and timelines agree, and writes consumed.json."""

    def __init__(self, context: DaemonContext, store: RunStore, planner: Planner) -> None:
        self.layout, self.events, self.config = context.layout, context.events, context.pipeline.train
        self.run, self.file = context.layout.run(self.config.run), context.pipeline.file
        self.store, self.planner = store, planner
        before = read_or_set_aside(self.run.consumed, self.layout.quarantine) or {}
        rate, reach = before.get("windows_per_s"), before.get("reach")
        # Where the next launch stops, None where it may read all that is planned.
        self.reach = None if reach is None else Position.parse(reach)
        known = float(rate) if isinstance(rate, int | float) else None
        self.pace = WindowRate(known, least_s=SOON_S)  # of training alone: how soon its data is needed
        self.headway = WindowRate(known)  # short waits for data included: how long the run will take
        self.wait = DataWait(context.pipeline.plan.hold)
        self.timeline = 0  # the current one, at the last look
        self.last_step = self.config.horizon  # of the run, as seen from the newest checkpoint
        self._written: tuple[Any, ...] = ()  # what consumed.json says
        self._written_rate: float | None = None

    def timelines(self) -> Timelines:
        """The run's rollbacks as they are on disk."""
        return read_timelines(self.run.timelines)

    def history(self) -> History:
        """The history of the current timeline."""
        return ancestry(self.timelines())

    def skips(self) -> tuple[Skip, ...]:
        """What the current timeline passes over."""
        return skips(self.timelines())

    def settle(self, checkpoint: Checkpoint | None) -> None:
        """Make record and plan agree with the newest proven checkpoint, or raise DataError."""
        if checkpoint is None:
            return
        if self.store.settle(checkpoint):
            self.events.record("run_record_restored", "warning", source=checkpoint.path.name)
        launches, _ = read_launches(self.run.launches)
        if launches and checkpoint.step > launches[-1].resume_step:
            self.store.fruitful()  # the last launch got this far
        restore_timelines(self.run.timelines, read_timelines(checkpoint.path / TIMELINES_COPY))
        self.planner.belongs_to(self.store.begun.identity.run_id)
        if lost := self.planner.restore(checkpoint.plan()):
            self.events.record("plan_restored", "warning", entries=lost, source=checkpoint.path.name)

    def why_not_from_start(self, *, has_rejected: bool) -> str:
        """Why a run without a proven checkpoint does not begin at step 0, and what to do; "" where it may.

        `has_rejected`: a checkpoint was proven wrong just now.
        """
        if self.store.record is None:
            return ""
        kept = int((read_or_set_aside(self.run.consumed, self.layout.quarantine) or {}).get("step", 0))
        best = max(kept, self.store.record.best_step)
        if not (kept or (has_rejected and best)):
            return ""
        return (
            f"run {self.config.run} has trained to step {best}, and none of its checkpoints is left "
            f"whole: it does not begin again at step 0 by itself. Put a whole one back into "
            f"{self.run.checkpoints} (what was convicted lies in {self.layout.quarantine}/checkpoint-*, "
            f"each with its reason.json), or begin anew on purpose: stoker rollback {self.file} 0"
        )

    def steps(self, at: Checkpoint) -> int:
        """The run's last step, seen from a checkpoint."""
        tokens, plan, skipped = int(at.body["tokens"]), self.planner.plan, self.skips()
        self.last_step = last_step(
            self.config, plan, step=at.step, position=at.position, tokens=tokens, skips=skipped
        )
        return self.last_step

    def over(self, at: Checkpoint) -> str | None:
        """Why the run is over at a checkpoint; None while it goes on."""
        steps, batch = self.steps(at), self.config.global_batch
        plan, skipped = self.planner.plan, self.skips()
        return finished_at(at.step, at.position, plan, steps=steps, global_batch=batch, skips=skipped)

    def windows_left(self, position: Position) -> int:
        """Windows the plan still has to give from a position on; what is skipped is none."""
        return left_after(self.planner.plan, position, self.skips())

    def until(self, at: Checkpoint) -> int | None:
        """The last step that a launch from a checkpoint makes of what it may read; None: it may read all."""
        if self.reach is None:
            return None
        windows = self.windows_left(at.position) - self.windows_left(self.reach)
        return at.step + windows // self.config.global_batch

    def outlook(self, at: Checkpoint, step: int, position: Position) -> Outlook:
        """How far the plan must reach, seen from a step after a checkpoint."""
        batch = self.config.global_batch
        reached = self.planner.plan.windows - self.windows_left(position)
        lead = ahead_windows(global_batch=batch, windows_per_s=self.pace.windows_per_s, lead_s=LEAD_S)
        return Outlook(reached, reached + max(0, self.steps(at) - step) * batch, lead)

    def moved(self, position: Position) -> None:
        """The trainer is at a position now; a wait for data is no part of its speed."""
        now = time.monotonic()
        waited_s = self.wait.lasted_s(now)
        for rate, most_s in ((self.pace, 0.0), (self.headway, SHORT_WAIT_S)):
            if waited_s > most_s:
                rate.interrupted()
            else:
                rate.sampled(linear(self.planner.plan, position), now)

    def interrupted(self) -> None:
        """The trainer ended."""
        self.pace.interrupted()
        self.headway.interrupted()

    def keep(self, at: Checkpoint) -> None:
        """Write consumed.json if what it says has changed: the evictor and the hydrator go by it."""
        history, plan = self.history(), self.planner.plan
        self.timeline = history[0][0]
        finished, keep_last = self.over(at), self.config.checkpoint.keep_last
        low_water = mark(self.run.checkpoints, history, plan, keep_last=keep_last, newest=at.step)
        rate, written = self.pace.windows_per_s, self._written_rate
        is_same_pace = rate == written or (
            rate is not None and written is not None and abs(rate - written) <= RATE_CHANGE * written
        )
        wants = () if finished else self.planner.wants
        facts = (history, at.path, at.step, low_water, self.reach, finished, wants)
        if facts == self._written and is_same_pace:
            return
        record = consumed_body(
            self.config.run,
            at.path.name or None,
            at.body,
            plan,
            finished=finished,
            skips=self.skips(),
            low_water=low_water,
            wants=wants,
            windows_per_s=None if rate is None else round(rate, 3),
            reach=self.reach,
        )
        write_record(self.run.consumed, record)
        self._written, self._written_rate = facts, rate
        # Room for two more checkpoints as large as the last one: one sealed, one being sealed.
        files = at.body.get("files", {}).values() if not finished else ()
        place, wanted = self.run.checkpoints, 2 * sum(int(file["size"]) for file in files)
        claim = Claim(place.stat().st_dev, str(place), "checkpoints", wanted)
        write_claims(self.layout, TRAIN_SUPERVISOR, [claim] if wanted else [])
