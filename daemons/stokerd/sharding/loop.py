"""The stage-shard loop: stage -> preflight -> build -> prove -> sync -> release; evict and hydrate.

Each cycle reads the inputs, hears the workers, decides, and applies the effects. A fact counts once it is
durable, so a restart repeats only idempotent work.
"""

from __future__ import annotations

import contextlib
import math
import time

from stoker.corpus.records.sources import OPEN
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.outcome import Evidence, Outcome, judge
from stoker.corpus.schedule.state import Situation
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit, WorkerNotStarted
from stoker.kit.workers.pool import Job
from stoker.store.errors import StorageError, UnavailableError
from stokerd.common.loop import NO_DATA, repeat
from stokerd.sharding.activities import build, disks, quarantine, tokenizer
from stokerd.sharding.activities.base import Work
from stokerd.sharding.effects import Effects
from stokerd.sharding.limits import Parallelism
from stokerd.sharding.record_actions import bring_in_line, keep_demand, take
from stokerd.sharding.state import State
from stokerd.sharding.status import Status, summary

LONGEST_WAIT_S = 5.0
OWNER_WAIT_S = 10.0  # for hot and warm, before anything is shown


def run(context: DaemonContext) -> int:
    """Makes shard sets until asked to stop, with --once until receipts are used; returns the exit code."""
    if not context.pipeline.has_data:
        context.ready(NO_DATA)
        return 0
    return StageShard(context, State(context)).run()


class StageShard:
    def __init__(self, context: DaemonContext, state: State) -> None:
        self.context, self.state = context, state
        self.effects = Effects(context, state)
        self.parallelism = Parallelism(context, state)
        self.status = Status(context)
        self.has_changed = False  # whether the last cycle changed a record or a job
        self.has_news = True  # whether an input of a decision may have changed
        self.situation: Situation | None = None  # the facts of the last decision, None without any
        self.settle_due = 0.0  # the latest time to write the demand and the pin's listing

    def run(self) -> int:
        """Runs until stopped; returns the exit code."""
        state, unfinished = self.state, "not all is built; start it again to continue"
        try:
            return repeat(self.context, state.pool, self.start, self.cycle, unfinished=unfinished)
        finally:
            with contextlib.suppress(StorageError):  # the next start computes the claims again
                state.space.refresh(state)

    def start(self) -> None:
        """Watches the inputs, owns the disks, and brings the records in line with the configuration."""
        self.state.records.watch()
        self.state.placement.watch()
        self.take_disks()
        self.effects.apply(bring_in_line(self.state))
        self.effects.apply(tokenizer.TOKENIZER.start_due(self.state))  # a given tokenizer needs no file
        self.context.ready("looking at hot")

    def cycle(self) -> int | None:
        """Acts once, waits, and hears the workers; returns the exit code when --once is finished."""
        try:
            self.turn()
            if self.context.once and not self.has_changed and is_over(self.state, self.situation):
                return summarize(self.state)
            self.wait()
            self.hear()
        except (StorageError, WorkerNotStarted):
            self.has_news = True
            for disk in self.state.disks:
                disk.look_soon()
            raise
        return None

    def take_disks(self) -> None:
        """Starts the listers and waits for them to own hot and warm; another owner ends this daemon (75)."""
        until = time.monotonic() + OWNER_WAIT_S
        while not self.context.stopping and time.monotonic() < until:
            # A look requested now would miss the changes that the start makes.
            self.effects.apply(disks.LIST.start_due(self.state))
            if all(disk.is_owned or disk.why for disk in self.state.disks):
                return
            self.context.waiter.wait(0.1)
            self.hear()

    def turn(self) -> None:
        """Observes, decides, applies, reports."""
        state, before = self.state, self.stamp()
        self.observe()
        self.effects.apply(quarantine.act(state))
        self.effects.apply(build.consider_requests(state))
        if not state.hot.is_known or (state.warm is not None and state.warm.is_undecided):
            self.situation = None
        elif state.hot.is_measured and (self.has_news or self.situation is None):
            self.act()
        self.status.show(state)
        self.has_changed = self.stamp() != before

    def stamp(self) -> object:
        """Returns a value that changes with a record, a job, or a disk's availability or measure."""
        disks = [(disk.is_known, disk.is_measured) for disk in self.state.disks]
        return self.state.sources.changes, self.state.pool.busy, disks

    def observe(self) -> None:
        """Reads the inputs, and looks at the disks, memory and the machine."""
        state = self.state
        state.records.read()
        self.effects.apply(state.placement.look())
        state.pauses.look(state)
        self.effects.apply(self.parallelism.look(state))
        self.effects.apply(disks.tend(state))
        state.space.refresh(state)
        self.effects.apply(build.answer_growth(state))

    def act(self) -> None:
        """Applies the schedule's decisions; if none changes anything, also settles."""
        state, before = self.state, self.stamp()
        state.placement.choose(state)
        situation = state.situation()
        if time.monotonic() >= self.settle_due:
            # With many small files each cycle begins a file; the other daemons still need demand and listing.
            self.settle(situation)
        for action in decide(situation, time.monotonic()):
            self.effects.apply(take(state, action))
        if self.stamp() != before:
            state.space.refresh(state)  # the other daemons grant space by these claims
        for activity in state.activities.values():
            self.effects.apply(activity.start_due(state))
        self.situation = situation
        if self.stamp() == before:
            self.effects.apply(state.space.make_room(state, situation))
            self.settle(situation)

    def settle(self, situation: Situation) -> None:
        """Writes the demand and the pin's listing, which other daemons wait for."""
        state = self.state
        self.settle_due = time.monotonic() + LONGEST_WAIT_S
        self.effects.apply(keep_demand(state, situation))
        self.effects.apply(state.records.pinning.keep_listing())

    def hear(self) -> None:
        """Handles the workers' messages and ends."""
        state, before = self.state, self.stamp()
        for job, messages, ended in state.pool.hear():
            activity = state.activities[job.kind]
            self.has_news |= ended is not None or any(message["kind"] == "seen" for message in messages)
            for message in messages:
                self.effects.apply(activity.on_message(state, job, message))
            if ended is not None:
                self.effects.apply(activity.end(state, job, self.judge(job, ended)))
        self.has_news |= self.stamp() != before

    def judge(self, job: Job[Work], ended: WorkerExit) -> Outcome:
        """Returns the outcome of a job, by its worker's end, its memory and its disk."""
        state = self.state
        before, facts = job.facts.memory, state.pauses.memory.look_now()
        is_to_warm = state.activities[job.kind].writes_to == "warm"
        disk = state.warm if is_to_warm and state.warm is not None else state.hot
        evidence = Evidence(
            oom_killed=before is not None and facts.oom_kills > before.oom_kills,
            headroom_bytes=facts.headroom_bytes,
            free_bytes=None if disk.measure is None else disk.measure.free_bytes,
        )
        return judge(ended, evidence)

    def wait(self) -> None:
        """Sleeps until a worker, a record, a request or a signal arrives, or a timer is due."""
        now = time.monotonic()
        due = min(now + LONGEST_WAIT_S, self.state.next_due, self.state.records.due, self.parallelism.due)
        events = self.state.pool.wait(0.0 if self.has_changed else max(0.0, due - now))
        # Progress messages are no news; a worker's end is, and a report of its disk's lister.
        is_due = self.has_changed or time.monotonic() >= due
        self.has_news = is_due or any(event.kind != "fd" for event in events)


# The end of --once


def is_over(state: State, situation: Situation | None) -> bool:
    """Whether no job runs and none would begin, however long the daemon waited.

    `situation` holds the facts of the last decision.
    """
    if situation is None:
        return False
    for disk in state.disks:
        if not (disk.is_known and disk.is_measured) or disk.litter:
            return False
    if state.warm is not None and "hot" in state.space.short and not state.placement.is_tried(state):
        return False
    listers = {disk.lister for disk in state.disks}
    if any(job.subject not in listers and not job.abandoned for job in state.pool.jobs):
        return False
    if state.records.is_behind or state.pauses.reasons(state):  # a pause ends the daemon by its own limit
        return False
    return not decide(situation, math.inf) and not tokenizer.is_wanted(state)


def summarize(state: State) -> int:
    """Logs the finished and the unfinished work; returns the exit code."""
    records, left = state.records, []
    beyond = records.pinning.beyond
    paths = (one.path for one in state.sources.in_state(*OPEN) if records.takes(one.path))
    open_ = sorted(path for path in paths if path not in beyond)
    if records.pinning.training is not None:
        left.append("the tokenizer waits until enough of the listing is here")
    if open_:
        left.append(f"{len(open_)} not finished: {', '.join(open_[:3])}")
    if state.warm is not None and (behind := len(state.sources.unsynced)):
        left.append(f"{behind} not copied to warm")
    if stuck := [job.name for job in state.pool.jobs if job.abandoned]:
        raise UnavailableError(f"{', '.join(stuck)}: hangs in the kernel; check the mount")
    if (short := state.space.short.get("hot")) is not None:
        raise StorageError(f"{short}; free some space, then start again")
    state.context.log.info("drained", message=summary(state.sources.sums, left))
    return 0
