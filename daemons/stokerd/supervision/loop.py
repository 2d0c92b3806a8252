"""The train supervisor: keeps one training run alive and honest, from its first data to its last step.

The story is told in `live`: wait until nothing of an earlier launch is left; find the newest checkpoint that
is proven whole; see to data, held-out windows and plan; launch the trainer under its guard and watch it; look
at how it ended; again. What to do is decided by the pure functions of stoker.supervise; here it is done.
"""

from __future__ import annotations

import os
import time
from typing import Any

from stoker.corpus.records.pin import DatasetPin
from stoker.kit.backoff import Backoff
from stoker.kit.daemon import DaemonContext
from stoker.kit.lock import Lock
from stoker.kit.process.process_id import set_child_subreaper
from stoker.kit.workers.pool import WorkerPool
from stoker.plan.positions import START, Position
from stoker.plan.timelines import ancestry
from stoker.store.errors import DataError, StorageError
from stoker.store.files import opened
from stoker.store.layout import TRAIN_SUPERVISOR
from stoker.store.names import new_id, utc_now
from stoker.store.record import write_record
from stoker.supervise.health.exit_class import Exit, ExitClass, classify
from stoker.supervise.health.restart_policy import after_exit
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.report.metrics import Meters
from stoker.supervise.run.data_wait import waiting_words
from stoker.supervise.run.launch_log import launched_body, note_launch
from stoker.supervise.run.launch_record import Launch, launch_body
from stoker.supervise.run.planner import Planner
from stokerd.supervision import rollback as rollback_desk
from stokerd.supervision.accounts import RunAccounts
from stokerd.supervision.checkpoint_drops import DROP, CheckpointDrops
from stokerd.supervision.checkpoints import CheckpointDesk
from stokerd.supervision.cycle import Changed, Stopped, Turns
from stokerd.supervision.data_readiness import Provisions
from stokerd.supervision.launch import LaunchWatch
from stokerd.supervision.launch_window import Parts
from stokerd.supervision.leftovers import Ground
from stokerd.supervision.requests import RequestDesk
from stokerd.supervision.rollback import RollbackDesk
from stokerd.supervision.run_store import RunBook
from stokerd.supervision.set_repair import SetLost
from stokerd.supervision.status import RunBoard

LOOK_S = 1.0  # between two looks at checkpoints and plan while the trainer runs
REQUESTS_S = 10.0
COMPLAINT_S = 60.0


def story(context: DaemonContext) -> int:
    """Supervise the run until asked to stop; with --once until it is finished."""
    supervisor = TrainSupervisor(context)
    try:
        return supervisor.live()
    except Stopped:
        supervisor.farewell()
        return 0
    finally:
        supervisor.turns.drop_work()
        supervisor.desk.close()


class TrainSupervisor:
    """One run: its record, its checkpoints, its plan, its trainer."""

    def __init__(self, context: DaemonContext) -> None:
        self.context, self.events, self.pipeline = context, context.events, context.pipeline
        self.layout, self.train_config = context.layout, context.pipeline.train
        self.run = self.layout.run(self.train_config.run)
        self.turns = Turns(
            context, WorkerPool[Any](f"{self.layout.state}:{TRAIN_SUPERVISOR}", context.waiter)
        )
        self.ground = Ground(context, self.turns)
        self.meters = Meters(context.metrics)
        backoff = self.pipeline.supervise.backoff
        self.backoff = Backoff(backoff.first, backoff.most)
        self.run_directories()
        self.book = RunBook(self.pipeline)
        self.book.read()
        self.desk = CheckpointDesk(context, self.turns, self.meters, self.book)
        run_id = self.book.record.identity.run_id if self.book.record else None
        self.planner = Planner(self.layout, self.pipeline.dataset.name, self.run.plan, run_id)
        self.accounts = RunAccounts(context, self.book, self.planner)
        self.provisions = Provisions(context, self.turns, self.planner)
        self.board = RunBoard(context, self.turns, self.desk, self.accounts)
        self.turns.each, self.turns.show = self.each_turn, self.board.show
        self.parts = Parts(context, self.planner, self.accounts.reach)
        self.rollbacks = RollbackDesk(context, self.turns, self.desk, self.book, self.planner)
        verbs = dict.fromkeys(rollback_desk.VERBS, self.rollbacks.consider)
        verbs[DROP] = CheckpointDrops(context).consider
        self.requests = RequestDesk(context, self.turns, verbs)
        self.watch: LaunchWatch | None = None
        self.last: Exit | None = None  # how the last launch ended, until that was answered

    def live(self) -> int:
        """The story, top to bottom; returns the exit code."""
        set_child_subreaper()
        self.turns.crew.end_leftovers()
        self.context.ready("taking up the run")
        while True:
            try:
                code = self.next_round()
            except Changed:  # a rollback is asked for: what was waited for may not be wanted any more
                self.drop_work()
                self.turns.changed = ""
                continue
            if code is not None:
                return code

    def next_round(self) -> int | None:
        """One round on ground that is clear of any earlier launch, once the state directory can be used."""
        try:
            with self.ground.clear() as lock:  # a launch takes the lock with it
                return self.round(lock)
        except StorageError as problem:  # a full disk passes; what was running is asked to save and end
            self.events.record("storage_trouble", "warning", message=str(problem))
            self.drop_work()
            self.turns.pause(self.backoff.next(), "the state directory cannot be used; trying")
            return None

    def round(self, lock: Lock) -> int | None:
        """From the newest proven checkpoint to the end of one launch; an exit code ends the story."""
        self.board.at_rest = False
        if self.rollbacks.take_up():
            self.last = self.watch = None
        history = ancestry(self.accounts.timelines())
        self.desk.note_sealed(history)
        checkpoint = self.desk.newest_proven(history)
        if not self.accounts.counts(checkpoint):
            return None  # it could not be told before: it is past a fork, and is moved away now
        if checkpoint is None and (why := self.accounts.why_not_anew(convicted=self.desk.convicted)):
            return self.fail(DataError.exit_code, why)
        self.accounts.settle(checkpoint)
        self.desk.see_to_heldout()
        self.keep_books(checkpoint)
        if (code := self.follow(checkpoint)) is not None:
            return code
        over = self.accounts.over(checkpoint)
        if over != "steps":  # at the data's end, too: the cap on epochs may have been raised
            self.board.gathering = True
            try:
                self.gather(checkpoint)
            except SetLost as lost:
                return self.fail(lost.exit_code, str(lost))
            finally:
                self.board.gathering = False
            over = self.accounts.over(checkpoint)
        if over is not None:
            lock.release()
            return self.rest(over, checkpoint)
        self.last = self.launch(lock, checkpoint)
        return None

    # Taking up the run

    def run_directories(self) -> None:
        """Make the run's place, with an empty plan and no rollbacks where there are none yet."""
        self.run.create()
        for log in (self.run.plan, self.run.timelines):
            with opened(log, os.O_WRONLY | os.O_CREAT):
                pass
        requests = self.layout.requests(TRAIN_SUPERVISOR)
        for directory in (self.run.checkpoints, self.layout.sources, self.layout.datasets, requests):
            self.context.waiter.watch(directory)

    # Books

    def keep_books(self, checkpoint: Checkpoint | None) -> None:
        """Prune what a proven checkpoint makes superfluous, which makes room, and keep consumed.json true."""
        if checkpoint is not None:
            self.desk.prune()
        self.accounts.keep(checkpoint)

    # Data

    def gather(self, checkpoint: Checkpoint | None) -> None:
        """See to everything a launch reads; returns when there is a batch to train on, or never will be."""
        if self.book.record is None:
            self.begin_run()
        step, position = (checkpoint.step, checkpoint.position) if checkpoint else (0, START)
        mended = self.provisions.repairs.mended
        while True:
            self.parts.look(position, self.accounts.skips())
            self.accounts.reach = self.parts.reach
            self.provisions.need(position, self.accounts.skips(), self.parts.reach)
            pin = self.keep_planned(step, position, checkpoint)
            if self.accounts.windows_left(checkpoint) >= self.train_config.global_batch:
                lacking = self.provisions.lacking(pin) if pin is not None else "waiting for the dataset's pin"
            elif self.planner.plan.ended:
                return
            else:
                lacking = waiting_words(self.planner.why)
            if not lacking:
                break
            self.turns.doing = lacking
            self.turns.turn_or_stop()
        if self.provisions.repairs.mended > mended:
            self.book.fruitful()

    def begin_run(self) -> None:
        """A new run: wait until there is enough data, hold windows out of it, and write down what it is."""
        pin = self.provisions.wait_at_gate()
        identity = self.book.new_identity(pin)
        sets = self.provisions.heldout_sets(pin, identity.seq_len)
        while cold := self.planner.cold(sets):  # another run over the same data has passed them
            self.provisions.repairs.check_hope(pin, cold, time.monotonic())
            self.planner.note_wants(sets)
            self.keep_books(None)
            self.turns.doing = f"bringing back {len(cold)} shard sets with held-out text"
            self.turns.turn_or_stop()
        self.book.begin(identity, self.provisions.hold_out(sets, identity, str(self.run.heldout)))
        self.planner.belongs_to(identity.run_id)

    def keep_planned(self, step: int, position: Position, newest: Checkpoint | None) -> DatasetPin | None:
        """Keep the plan ahead of the trainer, from the dataset that the run began with and no other.

        What is needed hot, from the newest checkpoint on, is written down before anybody looks for it there.
        """
        pin = self.planner.pin()
        if pin is not None:
            self.book.check_pin(pin)
            outlook = self.accounts.outlook(step, position, self.accounts.steps(newest))
            self.provisions.keep_planned(pin, outlook)
        here, reach, skips = newest.position if newest else START, self.parts.reach, self.accounts.skips()
        later = () if reach is None else self.planner.needed(reach, skips)
        self.planner.note_wants(self.planner.needed(here, skips, upto=reach), later)
        self.accounts.keep(newest)
        return pin

    # A launch

    def launch(self, lock: Lock, checkpoint: Checkpoint | None) -> Exit:
        """Launch the trainer from a proven checkpoint, watch it to its end, and class that end."""
        pin = self.planner.pin()
        if pin is None:
            raise DataError(f"{self.layout.datasets} has no pin any more; start the stage-shard loop")
        step, position = (checkpoint.step, checkpoint.position) if checkpoint else (0, START)
        launch = Launch(
            launch=new_id(),
            timeline=self.accounts.timelines().current,
            resume_from=checkpoint.path if checkpoint else None,
            resume_step=step,
            until=self.parts.until(step, position, self.accounts.skips()),
            notify_socket=self.context.runtime.notify_socket(self.train_config.run),
        )
        self.book.launching()
        body = launch_body(launch, self.pipeline, pin, self.book.begun, steps=self.accounts.steps(checkpoint))
        write_record(self.run.launch, body)
        line = launched_body(body, resume_step=launch.resume_step, time=utc_now())
        if damage := note_launch(self.run.launches, line):
            self.events.record("launch_log_damaged", "warning", message=damage[0])
        words: dict[str, Any] = {"launch": launch.launch, "resume_step": launch.resume_step}
        words |= {} if launch.until is None else {"until": launch.until}
        self.events.record("trainer_launched", **words)
        self.watch = self.board.live = LaunchWatch(self.context, self.turns, launch)
        self.provisions.needed = {}  # proven now; what leaves and comes back is no trouble to who has it open
        try:
            ending = self.watch.run(lock, self.look_after)
        except StorageError:
            self.book.uncounted = True  # it was ended for want of a disk, which says nothing against it
            raise
        finally:
            self.board.launch_ended()
            self.accounts.interrupted()
        self.drop_work()
        exit_ = classify(ending)
        self.turns.doing = f"the trainer ended: {exit_.detail}"
        self.meters.restarts.labels(exit_.kind).inc()
        level = "info" if exit_.kind in ("finished", "stopped_as_asked") else "warning"
        words = {"launch": launch.launch, "exit_class": str(exit_.kind), "step": self.watch.step}
        self.events.record("trainer_exited", level, message=exit_.detail, **words)
        if self.context.stopping:
            self.book.stopped()
            self.turns.doing = f"stopped at step {self.watch.step}: {exit_.detail}"
            raise Stopped
        return exit_

    def look_after(self) -> None:
        """While the trainer runs: prove what it sealed, keep the books and the plan."""
        assert self.watch is not None
        if self.watch.stop_asked or not self.turns.due("look", LOOK_S):
            return
        try:
            self.look_after_checkpoints_and_plan(self.watch)
        except StorageError as problem:  # training goes on; what could not be written is written later
            if self.turns.due("storage trouble", COMPLAINT_S):
                self.events.record("storage_trouble", "warning", message=str(problem))

    def look_after_checkpoints_and_plan(self, watch: LaunchWatch) -> None:
        """One look; StorageError where the state directory takes nothing now."""
        if self.desk.prove_new(ancestry(self.accounts.timelines())) and self.desk.newest is not None:
            self.keep_books(self.desk.newest)
        newest = self.desk.newest
        position = watch.position or (newest.position if newest else START)
        if watch.stepped:
            self.accounts.moved(position, waited_s=self.board.wait.lasted_s(time.monotonic()))
        self.keep_planned(watch.step, position, newest)

    def follow(self, checkpoint: Checkpoint | None) -> int | None:
        """Answer the end of the last launch; an exit code when the run is given up."""
        if self.last is None or self.watch is None:
            return None
        last, record = self.last, self.book.begun
        sealed = checkpoint.step if checkpoint else 0
        progressed = sealed > self.watch.launch.resume_step or self.watch.step > record.best_step
        following = after_exit(
            last,
            progressed=progressed,
            fruitless=max(0, record.fruitless - 1),  # it was counted when it began
            most_fruitless=self.pipeline.supervise.no_progress_launches,
        )
        best = max(record.best_step, self.watch.step, sealed)
        self.book.change(fruitless=following.fruitless, best_step=best)
        self.last = None  # answered once it is on disk: a full disk must not make a failure forgotten
        if self.accounts.over(checkpoint) is not None:
            return None
        if following.exit_code is not None:
            return self.fail(following.exit_code, following.reason)
        if progressed:
            self.backoff.reset()
        if last.kind is ExitClass.FINISHED and self.watch.launch.until is not None:
            return None  # a part of the plan is done; the next one
        if following.prove_data:  # and a launch waits until they are
            self.provisions.doubt(checkpoint.position if checkpoint else START, self.accounts.skips())
        self.turns.pause(self.backoff.next(), f"the trainer ended ({following.reason}); starting")
        return None

    # The end

    def fail(self, code: int, reason: str) -> int:
        """Give the run up, visibly; returns the exit code."""
        self.book.change(state="failed", reason=reason)
        self.turns.doing = f"failed: {reason}"
        self.events.record("run_failed", "error", message=reason, exit_code=code)
        self.turns.turn(0.0)
        return code

    def rest(self, why: str, checkpoint: Checkpoint | None) -> int:
        """The run is finished: say so, and with --once end; else stay for whoever asks."""
        record = self.book.record
        if record is not None and (record.state, record.finished) != ("finished", why):
            self.book.change(state="finished", finished=why, reason=None, fruitless=0)
            self.events.record("run_finished", message=why, step=checkpoint.step if checkpoint else 0)
        self.watch = None
        self.turns.doing = f"finished: {why}"
        while not self.desk.all_judged(ancestry(self.accounts.timelines())):
            self.turns.turn_or_stop()  # the older checkpoints: retention removes none that nobody looked at
        if checkpoint is not None:
            self.keep_books(checkpoint)
        self.board.at_rest = True
        while not self.context.once:
            self.turns.turn_or_stop()
        self.turns.turn(0.0)
        return 0

    # Small things

    def drop_work(self) -> None:
        """Stop the workers; what they found out is asked again."""
        self.turns.drop_work()
        self.desk.drop_work()

    def each_turn(self) -> None:
        """What is looked at however long something else takes."""
        self.requests.look()
        self.desk.tend()
        self.board.look()

    def farewell(self) -> None:
        """Leave a last status behind, which names what was sealed last."""
        self.desk.note_sealed(ancestry(self.accounts.timelines()))
        self.context.beat(*self.board.show())
