"""The stage-shard loop: stage -> preflight -> build -> prove -> sync -> release; evict and hydrate.

Each cycle reads the inputs, hears the workers, decides, and applies the effects. A fact counts once it is
durable, so a restart repeats only idempotent work.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator

from stoker.corpus.records.sources import OPEN
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.outcome import Evidence, Outcome, judge
from stoker.corpus.schedule.state import Situation
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerExit, WorkerNotStarted
from stoker.kit.workers.pool import Job
from stoker.store.errors import StorageError, UnavailableError
from stokerd.common.loop import NO_DATA, repeat
from stokerd.sharding import placement
from stokerd.sharding.activities import ACTIVITIES, build, disks, quarantine, tokenizer
from stokerd.sharding.apply import Effects
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Effect
from stokerd.sharding.growth import answer_growth
from stokerd.sharding.parallelism import Parallelism
from stokerd.sharding.pauses import WRITES_TO
from stokerd.sharding.record_actions import bring_in_line, keep_demand, take
from stokerd.sharding.room import make_room
from stokerd.sharding.situation import situation_of
from stokerd.sharding.state import State
from stokerd.sharding.status import Status, summary
from stokerd.sharding.work import Work

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

    def run(self) -> int:
        """Runs until stopped; returns the exit code."""
        state, unfinished = self.state, "not all is built; start it again to continue"
        try:
            return repeat(self.context, state.pool, self.start, self.cycle, unfinished=unfinished)
        finally:
            with contextlib.suppress(StorageError):  # the next start computes the claims again
                state.claim_space()

    def start(self) -> None:
        """Watches the inputs, owns the disks, and brings the records in line with the configuration."""
        self.state.watch()
        self.take_disks()
        self.for_each(bring_in_line)
        self.for_each(tokenizer.TOKENIZER.start_due)  # a given tokenizer needs no file
        self.context.ready("looking at hot")

    def cycle(self) -> int | None:
        """Acts once, waits, and hears the workers; returns the exit code when --once is finished."""
        try:
            self.turn()
            if self.context.once and not self.has_changed and is_over(self.state):
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
            self.for_each(disks.LIST.start_due)
            if all(disk.is_owned or disk.why for disk in self.state.disks):
                return
            self.context.waiter.wait(0.1)
            self.hear()

    def turn(self) -> None:
        """Observes, decides, applies, reports."""
        state, before = self.state, self.state.stamp()
        self.observe()
        self.for_each(quarantine.act)
        self.for_each(build.consider_requests)
        for dataset in state.datasets.values():
            if not state.hot.is_known or (state.warm is not None and state.warm.is_undecided):
                dataset.situation = None
            elif state.hot.is_measured and (self.has_news or dataset.situation is None):
                self.act(dataset)
        self.status.show(state)
        self.has_changed = state.stamp() != before

    def for_each(self, handler: Callable[[DatasetState], Iterable[Effect]]) -> None:
        """Applies the effects of a handler for each dataset."""
        for dataset in self.state.datasets.values():
            self.effects.apply(handler(dataset))

    def observe(self) -> None:
        """Reads the inputs, and looks at the disks, memory and the machine."""
        state = self.state
        for dataset in state.datasets.values():
            dataset.read()
        state.inbox.read()
        self.effects.apply(state.runs.refresh())
        state.pauses.refresh()
        self.effects.apply(self.parallelism.refresh(state))
        self.for_each(disks.tend)
        state.claim_space()
        self.for_each(lambda dataset: answer_growth(dataset, state.claim_space))

    def act(self, dataset: DatasetState) -> None:
        """Applies the schedule's decisions for a dataset; if none changes anything, also settles."""
        state, before = self.state, self.state.stamp()
        dataset.placement.wants = placement.choose(dataset)
        situation = situation_of(dataset)
        if time.monotonic() >= dataset.settle_due:
            # With many small files each cycle begins a file; the other daemons still need demand and listing.
            self.settle(dataset, situation)
        for action in decide(situation, time.monotonic()):
            self.effects.apply(take(dataset, action))
        if state.stamp() != before:
            state.claim_space()  # the other daemons grant space by these claims
        for activity in ACTIVITIES.values():
            self.effects.apply(activity.start_due(dataset))
        dataset.situation = situation
        if state.stamp() == before:
            self.effects.apply(make_room(dataset, situation))
            self.settle(dataset, situation)

    def settle(self, dataset: DatasetState, situation: Situation) -> None:
        """Writes the demand and the pin's listing, which other daemons wait for."""
        dataset.settle_due = time.monotonic() + LONGEST_WAIT_S
        self.effects.apply(keep_demand(dataset, situation))
        self.effects.apply(dataset.pinning.keep_listing())

    def hear(self) -> None:
        """Handles the workers' messages and ends."""
        state, before = self.state, self.state.stamp()
        for job, messages, ended in state.pool.hear():
            activity, dataset = ACTIVITIES[job.kind], state.of(job)
            self.has_news |= ended is not None or any(message["kind"] == "seen" for message in messages)
            for message in messages:
                self.effects.apply(activity.on_message(dataset, job, message))
            if ended is not None:
                self.effects.apply(activity.end(dataset, job, self.judge(job, ended)))
        self.has_news |= state.stamp() != before

    def judge(self, job: Job[Work], ended: WorkerExit) -> Outcome:
        """Returns the outcome of a job, by its worker's end, its memory and its disk."""
        state = self.state
        before, facts = job.facts.memory, state.memory.look_now()
        is_to_warm = WRITES_TO.get(job.kind) == "warm"
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
        due = min(now + LONGEST_WAIT_S, self.state.next_due, self.parallelism.due)
        events = self.state.pool.wait(0.0 if self.has_changed else max(0.0, due - now))
        # Progress messages are no news; a worker's end is, and a report of its disk's lister.
        is_due = self.has_changed or time.monotonic() >= due
        self.has_news = is_due or any(event.kind != "fd" for event in events)


# The end of --once


def is_over(state: State) -> bool:
    """Whether no job runs and none would begin, however long the daemon waited."""
    if any(not disk.is_known or not disk.is_measured or disk.litter for disk in state.disks):
        return False
    listers = {disk.lister for disk in state.disks}
    if any(job.subject not in listers and not job.abandoned for job in state.pool.jobs):
        return False
    if state.pauses.reasons():  # a pause ends the daemon by its own limit
        return False
    waits_for_room = state.warm is not None and "hot" in state.space.short
    return all(_is_finished(dataset, waits_for_room) for dataset in state.datasets.values())


def _is_finished(dataset: DatasetState, waits_for_room: bool) -> bool:
    situation = dataset.situation
    if situation is None or dataset.is_behind or (waits_for_room and not placement.is_tried(dataset)):
        return False
    return not decide(situation, math.inf) and not tokenizer.task_of(dataset)


def summarize(state: State) -> int:
    """Logs the finished and the unfinished work; returns the exit code."""
    left = [words for dataset in state.datasets.values() for words in _left(dataset)]
    if stuck := [job.name for job in state.pool.jobs if job.abandoned]:
        raise UnavailableError(f"{', '.join(stuck)}: hangs in the kernel; check the mount")
    if (short := state.space.short.get("hot")) is not None:
        raise StorageError(f"{short}; free some space, then start again")
    state.context.log.info("drained", message=summary(state.dataset.sources.sums, left))
    return 0


def _left(dataset: DatasetState) -> Iterator[str]:
    """Yields what of a dataset is not finished."""
    sources, pinning = dataset.sources, dataset.pinning
    paths, beyond = (one.path for one in sources.in_state(*OPEN)), pinning.beyond
    open_ = sorted(
        path for path in paths if path not in beyond and (dataset.only is None or path in dataset.only)
    )
    if pinning.training is not None:
        yield "the tokenizer waits until enough of the listing is here"
    if open_:
        yield f"{len(open_)} not finished: {', '.join(open_[:3])}"
    if dataset.warm is not None and (behind := len(sources.unsynced)):
        yield f"{behind} not copied to warm"
