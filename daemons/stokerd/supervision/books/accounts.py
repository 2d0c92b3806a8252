"""The run's progress: run.json, plan and timelines against the newest proven checkpoint; consumed.json."""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from typing import Any

from stoker.checkpoints.format import PLAN_COPY, TIMELINES_COPY
from stoker.checkpoints.retention import History
from stoker.kit.context import DaemonContext
from stoker.observe.ledger import Claim, write_claims
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.growth import Cut
from stoker.plan.log import read_plan
from stoker.plan.positions import START, Position, Skip, left_after, linear
from stoker.plan.residency import ahead_windows, reaching
from stoker.plan.timelines import Timelines, ancestry, read_timelines, restore_timelines, skips
from stoker.store.errors import DataError, StorageError
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.record import read_or_set_aside, write_record
from stoker.supervise.evaluation.due import next_stop
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.run.early_stop import Standstill, newest_evaluation, read_evaluations, standstill
from stoker.supervise.run.horizon import longer_from
from stoker.supervise.run.launch_record import last_begun, read_launches
from stoker.supervise.run.planner import Planner
from stoker.supervise.run.progress import SOON_S, DataWait, WindowRate, finished_at, last_step, mark
from stoker.supervise.trainer_kind import TrainerKind
from stokerd.supervision.books.run_store import RunStore

# The supervisor asks for the sets of an entry this long before the trainer needs them. A shared disk of
# 40 MB/s brings back a dozen sets of a gigabyte each in five minutes; twice that leaves time to retry.
LEAD_S = 600.0
SHORT_WAIT_S = 60.0  # a shorter wait for data counts as part of the run's speed
TAIL_BYTES = 16 << 20  # of the training log: some 80,000 rows, read in a hundredth of a second
RATE_CHANGE = 0.2  # a smaller relative change of the pace is not written


class Accounts:
    """Makes the run's record, plan and timelines agree, and writes consumed.json."""

    def __init__(self, context: DaemonContext, kind: TrainerKind, store: RunStore, planner: Planner) -> None:
        self.layout, self.events, self.config = context.layout, context.events, context.pipeline.train
        self.run, self.file, self.kind = context.layout.run(self.config.run), context.pipeline.file, kind
        self.store, self.planner, self.asked_until = store, planner, context.until
        self.evaluations = context.pipeline.evaluations
        before = read_or_set_aside(self.run.consumed, self.layout.quarantine) or {}
        known, reach = before.get("windows_per_s"), before.get("reach")
        # The position where the next launch stops; None: it may read the whole plan.
        self.reach = None if reach is None else Position.parse(reach)
        self.pace = WindowRate(known, least_s=SOON_S)  # of training alone: decides how soon data is needed
        self.headway = WindowRate(known)  # with short waits for data: decides the run's time left
        self.wait = DataWait(context.pipeline.plan.hold)
        self._timelines: tuple[Any, Timelines] = None, Timelines()  # as read, and the file's stamp then
        self.timeline = 0  # the current timeline when it was last read
        self.forked = ""  # why the current timeline was begun
        self._history: History = ()
        with contextlib.suppress(DataError):  # whoever needs more of the timelines fails of it
            self.history()
        # Of the run, computed from the newest checkpoint; None: its trainer alone knows.
        self.last_step: int | None = kind.horizon(self.config)
        self._standstill: tuple[Any, Standstill] = None, Standstill()  # and what it is of
        self._evaluated: tuple[Any, tuple[int, float] | None] = None, None  # and what it is of
        self._written: tuple[Any, ...] = ()  # the facts in consumed.json
        self._written_rate = 0.0

    def timelines(self) -> Timelines:
        """Returns the run's timelines, read anew where the file has changed; raises DataError."""
        path = self.run.timelines
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            stamp = about.st_ino, about.st_size, about.st_mtime_ns
            if self._timelines[0] != stamp:
                self._timelines = stamp, read_timelines(path)
            return self._timelines[1]
        return read_timelines(path)

    def history(self) -> History:
        """Returns the current timeline and the ones it descends from."""
        timelines = self.timelines()
        self.timeline = timelines.current
        self.forked = timelines.forks[-1].reason if timelines.forks else ""
        self._history = ancestry(timelines)
        return self._history

    def skips(self) -> tuple[Skip, ...]:
        """Returns the ranges of the plan that the current timeline skips."""
        return skips(self.timelines())

    def settle(self, checkpoint: Checkpoint | None) -> None:
        """Makes record, plan and timelines agree with the newest proven checkpoint, or raises DataError."""
        if checkpoint is None:
            return
        if self.store.settle(checkpoint):
            self.events.record("run_file_restored", what="run.json", source=checkpoint.path.name)
        launches, _ = read_launches(self.run.launches)
        if launches and checkpoint.step > last_begun(launches):
            self.store.fruitful()  # the last launch has sealed a checkpoint
        restore_timelines(self.run.timelines, read_timelines(checkpoint.path / TIMELINES_COPY))
        self.planner.belongs_to(self.store.begun.identity.run_id)
        if lost := self.planner.restore(read_plan(checkpoint.path / PLAN_COPY)):
            self.events.record("run_file_restored", what="plan", entries=lost, source=checkpoint.path.name)

    def why_not_from_start(self, *, has_rejected: bool) -> str:
        """Returns why a run without a proven checkpoint must not begin at step 0, with advice; "": it may.

        `has_rejected`: a checkpoint was proven wrong in this phase.
        """
        if self.store.record is None:
            return ""
        kept = int((read_or_set_aside(self.run.consumed, self.layout.quarantine) or {}).get("step", 0))
        best = max(kept, self.store.record.best_step)
        if not (kept or (has_rejected and best)):
            return ""
        return (
            f"run {self.config.run} has trained to step {best}, and none of its checkpoints is left "
            f"whole: it does not start over at step 0 by itself. Put a whole one back into "
            f"{self.run.checkpoints} (what was rejected is in {self.layout.quarantine}/checkpoint-*, "
            f"each with its reason.json), or start over: stoker rollback {self.file} 0"
        )

    def steps(self, at: Checkpoint) -> int:
        """Returns the run's last step, computed from a checkpoint's step, position and tokens."""
        tokens, plan, skipped = int(at.body["tokens"]), self.planner.plan, self.skips()
        steps = last_step(self.config, plan, step=at.step, position=at.position, tokens=tokens, skips=skipped)
        self.last_step = steps
        return steps

    def over(self, at: Checkpoint) -> str | None:
        """Returns why the run is over at a checkpoint; None while steps are left."""
        if not self.kind.follows_plan:
            is_done = self.config.steps is not None and at.step >= self.config.steps
            return self.store.ended_by_trainer or ("steps" if is_done else None)
        steps, batch = self.steps(at), self.config.at(at.step).global_batch
        plan, skipped, patience = self.planner.plan, self.skips(), self.config.evaluate.patience
        why = finished_at(at.step, at.position, plan, steps=steps, global_batch=batch, skips=skipped)
        return why or ("early_stop" if patience and self.standstill(at).ends(patience) else None)

    def standstill(self, at: Checkpoint) -> Standstill:
        """Returns how many evaluations up to a checkpoint brought no gain."""
        history = self.history()
        if self._standstill[0] != (history, at.step):
            found = standstill(read_evaluations(self.run.metrics, history, at.step))
            self._standstill = (history, at.step), found
        return self._standstill[1]

    def evaluated(self, *said: object) -> tuple[int, float] | None:
        """Returns step and loss of the newest evaluation; looks for it where the trainer has `said` else.

        The training log has it: a checkpoint may be older than the evaluation of its own step.
        """
        facts = (self._history, *said)
        if facts != self._evaluated[0]:
            with contextlib.suppress(StorageError):  # the next word, or start, looks again
                rows = read_evaluations(self.run.metrics, self._history, tail_bytes=TAIL_BYTES)
                self._evaluated = facts, newest_evaluation(rows)
        return self._evaluated[1]

    def longer_from(self, at: Checkpoint) -> int | None:
        """Returns the step that a raised `train.steps` of wsd starts from; None: from this checkpoint."""
        if self.config.steps is None:  # a horizon in tokens moves with the batch, and nobody raised it
            return None
        steps, begins = self.config.steps, self.config.schedule.decay_begins(self.config.steps)
        launches, _ = read_launches(self.run.launches)
        return longer_from(launches, self.timelines(), step=at.step, steps=steps, begins=begins)

    def windows_left(self, position: Position) -> int:
        """Returns how many windows of the plan follow a position, without the skipped ones."""
        return left_after(self.planner.plan, position, self.skips())

    def until(self, at: Checkpoint) -> int | None:
        """Returns the last step of a launch: at `reach`, --until, an evaluation or the next phase.

        None: that of the run.
        """
        stops = [self.asked_until, next_stop(self.evaluations, at.step, self.config.milestones)]
        stops += [phase.start for phase in self.config.settings if phase.start > at.step]
        if self.reach is not None:
            windows = self.windows_left(at.position) - self.windows_left(self.reach)
            stops.append(at.step + windows // self.config.at(at.step).global_batch)
        return min((stop for stop in stops if stop is not None), default=None)

    def target(self, at: Checkpoint, step: int, position: Position) -> int:
        """Returns how many windows the plan must have, for a trainer at this step and position."""
        batch = self.config.at(step).global_batch
        reached = self.planner.plan.windows - self.windows_left(position)
        lead = ahead_windows(global_batch=batch, windows_per_s=self.pace.windows_per_s, lead_s=LEAD_S)
        return reached + min(self.config.windows(step, self.steps(at)), lead)

    def lengths(self, at: Checkpoint) -> tuple[int, tuple[Cut, ...]]:
        """Returns the seq_len of entries planned from a checkpoint on, and where later phases cut them."""
        reached = self.planner.plan.windows - self.windows_left(at.position)
        cuts = (
            Cut(reached + self.config.windows(at.step, after.start), after.seq_len)
            for before, after in pairwise(self.config.settings)
            if after.start > at.step and after.seq_len != before.seq_len
        )
        return self.config.at(at.step).seq_len, tuple(cuts)

    def windows_ahead(self, at: Checkpoint) -> int:
        """Returns by how many windows, which rollbacks skip, the data is ahead of a checkpoint's step."""
        made = self.windows_left(START) - self.windows_left(at.position)
        return linear(self.planner.plan, at.position) - made

    def windows_of_another_length(self, at: Checkpoint) -> int:
        """Returns how many windows a launch reads first that were planned with another seq_len than its."""
        length, plan = self.config.at(at.step).seq_len, self.planner.plan
        begin = next((one.n for one in reaching(plan, at.position) if one.seq_len == length), None)
        behind = 0 if begin is None else self.windows_left(Position(begin, 0))
        return max(0, self.windows_left(at.position) - behind)

    def moved(self, position: Position) -> None:
        """Takes in the trainer's position; a long wait for data does not count towards its speed."""
        now = time.monotonic()
        waited_s = self.wait.lasted_s(now)
        for rate, most_s in ((self.pace, 0.0), (self.headway, SHORT_WAIT_S)):
            if waited_s > most_s:
                rate.interrupted()
            else:
                rate.sampled(linear(self.planner.plan, position), now)

    def interrupted(self) -> None:
        """Takes in that the trainer ended: the time until the next launch is not part of its speed.

        It may have evaluated the step that it resumed from, which a stop had prevented before.
        """
        self.pace.interrupted()
        self.headway.interrupted()
        self._standstill = None, Standstill()

    def keep(self, at: Checkpoint) -> None:
        """Writes consumed.json where it has changed: the stage-shard loop evicts and hydrates by it."""
        history, plan = self.history(), self.planner.plan
        finished, keep_last = self.over(at), self.config.checkpoint.keep_last
        low_water = mark(self.run.checkpoints, history, plan, keep_last=keep_last, newest=at.step)
        rate = self.pace.windows_per_s or 0.0
        is_same_pace = abs(rate - self._written_rate) <= RATE_CHANGE * self._written_rate
        wants = () if finished else self.planner.wants
        facts = (history, at.path, at.step, low_water, self.reach, finished, wants)
        if facts == self._written and is_same_pace:
            return
        run = Holdings(self.config.run, plan, low_water, wants, finished, round(rate, 3) or None, self.reach)
        write_record(self.run.consumed, consumed_body(run, at.path.name or None, at.body, self.skips()))
        self._written, self._written_rate = facts, rate
        # Room for two more checkpoints as large as the last one: one sealed, one being sealed.
        files = at.body.get("files", {}).values() if not finished else ()
        place, wanted = self.run.checkpoints, 2 * sum(int(file["size"]) for file in files)
        claim = Claim(place.stat().st_dev, str(place), "checkpoints", wanted)
        write_claims(self.layout, TRAIN_SUPERVISOR, [claim] if wanted else [])
