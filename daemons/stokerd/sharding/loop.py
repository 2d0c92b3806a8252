"""The stage-shard loop: stage -> preflight -> build -> prove -> sync -> release; evict and hydrate.

Each cycle reads the inputs, hears the workers, decides, and applies the effects. A fact counts once it is
durable, so a restart repeats only idempotent work.
"""

from __future__ import annotations

import contextlib
import time

from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.outcome import Evidence, Outcome, judge
from stoker.corpus.schedule.state import Situation
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit, WorkerNotStarted
from stoker.kit.workers.pool import Job
from stoker.store.errors import StorageError
from stokerd.common.loop import repeat
from stokerd.sharding import once
from stokerd.sharding.activities import ACTIVITIES, build, lister, prove, tokenizer
from stokerd.sharding.effects import Effects
from stokerd.sharding.facts import quarantine
from stokerd.sharding.facts.parallelism import Parallelism
from stokerd.sharding.inputs import Inputs
from stokerd.sharding.record_actions import keep_demand, take
from stokerd.sharding.startup import bring_in_line, read_records
from stokerd.sharding.state import State, Work
from stokerd.sharding.status import Status

LONGEST_WAIT_S = 5.0
OWNER_WAIT_S = 10.0  # for hot and warm, before anything is shown


def run(context: DaemonContext) -> int:
    """Makes shard sets until asked to stop, with --once until receipts are used; returns the exit code."""
    records = read_records(context)
    records.pinning.refuse_another_build()
    return StageShard(context, State(context, records, ACTIVITIES)).run()


class StageShard:
    def __init__(self, context: DaemonContext, state: State) -> None:
        self.context, self.state = context, state
        self.effects = Effects(context, state)
        self.inputs = Inputs(context)
        self.parallelism = Parallelism(context, state)
        self.status = Status(context)
        self.has_changed = False  # whether the last cycle changed a record or a job
        self.has_news = True  # whether an input of a decision may have changed
        self.situation: Situation | None = None  # the facts of the last decision, None without any
        self.settle_due = 0.0  # the latest time to write the demand and the pin's listing

    def run(self) -> int:
        """Runs until stopped; returns the exit code."""
        state, unfinished = self.state, "not all is built; start it again and it goes on"
        try:
            return repeat(self.context, state.pool, self.start, self.cycle, unfinished=unfinished)
        finally:
            with contextlib.suppress(StorageError):  # the next start computes the claims again
                state.space.refresh(state)

    def start(self) -> None:
        """Watches the inputs, owns the disks, and brings the records in line with the configuration."""
        self.inputs.watch(self.context)
        self.state.placement.watch()
        self.take_disks()
        self.effects.apply(bring_in_line(self.state))
        self.effects.apply(tokenizer.TOKENIZER.start_due(self.state))  # a given tokenizer needs no file
        self.context.ready("looking at hot")

    def cycle(self) -> int | None:
        """Acts once, waits, and hears the workers; returns the exit code when --once is finished."""
        try:
            self.turn()
            if self.context.once and not self.has_changed and once.is_over(self.state, self.situation):
                return once.end(self.state)
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
            self.effects.apply(lister.LIST.start_due(self.state))
            if all(disk.is_owned or disk.why for disk in self.state.disks):
                return
            self.inputs.read_receipts(self.state)  # while the listers start
            self.context.waiter.wait(0.1)
            self.hear()

    def turn(self) -> None:
        """Observes, decides, applies, reports."""
        state, before = self.state, self.stamp()
        self.observe()
        self.effects.apply(quarantine.act(state))
        self.effects.apply(prove.consider(state))
        is_undecided = state.warm is not None and state.warm.is_undecided(
            state.retries.failures(state.warm.lister)
        )
        if not state.hot.is_known or is_undecided:
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
        self.inputs.read(state)
        self.effects.apply(state.placement.look())
        state.pauses.look(state)
        self.effects.apply(self.parallelism.look(state))
        self.effects.apply(lister.tend(state))
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
        for activity in ACTIVITIES.values():
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
            activity = ACTIVITIES[job.kind]
            self.has_news |= ended is not None or any(message["kind"] == "seen" for message in messages)
            for message in messages:
                self.effects.apply(activity.on_message(state, job, message))
            if ended is not None:
                self.effects.apply(activity.end(state, job, self.judge(job, ended)))
        self.has_news |= self.stamp() != before

    def judge(self, job: Job[Work], ended: WorkerExit) -> Outcome:
        """Returns the outcome of a job, by its worker's end, its memory and its disk."""
        before, facts = job.facts.memory, self.state.pauses.memory.look_now()
        warm = self.state.warm
        disk = warm if warm is not None and ACTIVITIES[job.kind].writes_to == "warm" else self.state.hot
        evidence = Evidence(
            oom_killed=before is not None and facts.killed_since(before),
            headroom_bytes=facts.headroom_bytes,
            free_bytes=None if disk.measure is None else disk.measure.free_bytes,
        )
        return judge(ended, evidence)

    def wait(self) -> None:
        """Sleeps until a worker, a record, a request or a signal arrives, or a timer is due."""
        now = time.monotonic()
        due = min(now + LONGEST_WAIT_S, self.state.next_due, self.inputs.due, self.parallelism.due)
        events = self.state.pool.wait(0.0 if self.has_changed else max(0.0, due - now))
        # Progress messages are no news; a worker's end is, and a report of its disk's lister.
        is_due = self.has_changed or time.monotonic() >= due
        self.has_news = is_due or any(event.kind != "fd" for event in events)
