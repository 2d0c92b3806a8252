"""The stage-shard loop: stage -> preflight -> build -> prove -> sync -> release; evict and hydrate.

Each turn looks at receipts, source records, what the runs hold and what the workers said, asks the schedule
what to do, does it, and records each fact after it is durable; so a restart repeats at most what can be.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from stoker.corpus.records.listing import ListingReader
from stoker.corpus.records.receipts import receipt_shelf
from stoker.corpus.schedule.decide import decide
from stoker.corpus.schedule.moves import decide_moves
from stoker.corpus.schedule.state import Limits
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.parent import WorkerNotStarted
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.store.errors import StorageError
from stoker.store.layout import STAGE_SHARD
from stokerd.common.alerts import Told
from stokerd.common.files_list import FilesList
from stokerd.common.request_box import RequestBox
from stokerd.common.storage_wait import wait_for_processes, wait_for_state
from stokerd.sharding.copies import MOVES, SetMoves
from stokerd.sharding.disk_status import DiskBoard
from stokerd.sharding.disks import Yard
from stokerd.sharding.failures import FailureDesk
from stokerd.sharding.growth import GrowthDesk
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.imports import ImportDesk
from stokerd.sharding.landing import LandingDesk
from stokerd.sharding.make_room import RoomDesk
from stokerd.sharding.once import Drain
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.parallelism import ParallelismDesk
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.placement import Residence
from stokerd.sharding.quarantine import QuarantineDesk
from stokerd.sharding.requests import SetRequests
from stokerd.sharding.source_actions import SourceActions
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.source_unavailable import SourceAway
from stokerd.sharding.space import DiskSpace
from stokerd.sharding.startup import acquit_for_other_columns, begin_new_version, restore_formers
from stokerd.sharding.status import ShardBoard
from stokerd.sharding.tasks import ShardTasks
from stokerd.sharding.tokenizer import TOKENIZER, TokenizerDesk
from stokerd.sharding.view import ShardView
from stokerd.sharding.warm_disk import NoWarm, WarmYard, forget_copies

LONGEST_WAIT_S = 5.0
PROVERS = 2


def story(context: DaemonContext) -> int:
    """Make shard sets until asked to stop; with --once of everything that has a receipt."""
    return StageShard(context).run()


class StageShard:
    """The loop and what it knows."""

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        self.context = context
        self.layout, self.events = context.layout, context.events
        self.dataset = pipeline.dataset.name
        self.limits = Limits(
            stagers=1,
            builders=1,
            provers=PROVERS,
            queue_files=pipeline.stage.queue_files,
            queue_bytes=pipeline.stage.queue_bytes,
            release=pipeline.shard.release,
            train=pipeline.tokenizer.file is None,
        )
        memory = pipeline.shard.memory
        self.crew = WorkerPool[Any](
            f"{self.layout.state}:{STAGE_SHARD}",
            context.waiter,
            record=context.events.record,
            most_rss_bytes=memory.hard,
            recycle_rss_bytes=memory.soft,
        )
        self.patience, self.told = Retries(), Told(self.events)
        self.tasks = ShardTasks(pipeline)
        self.pinning = Pinning(pipeline, self.events)
        self.book = SourceBook(self.layout, self.dataset, self.events)
        self.shelf = receipt_shelf(self.layout, self.dataset, patient=True)
        self.listing = ListingReader(self.layout, self.dataset)
        self.build_disks()
        self.build_desks()
        self.board = ShardBoard(context, self.crew)
        self.disk_board = DiskBoard(
            context.metrics, book=self.book, space=self.space, hot=self.yard, warm=self.warm
        )
        self.decided_on = 0  # the changes to the records that the last decisions knew of

    def build_disks(self) -> None:
        """Hot and warm, what there is room for on them, and what shall lie where."""
        context, crew, book, told = self.context, self.crew, self.book, self.told
        at, warm = (context, crew, self.patience), context.pipeline.warm
        self.yard = HotYard(*at, root=context.pipeline.hot, tasks=self.tasks, book=book, told=told)
        self.warm: WarmYard | NoWarm = NoWarm()
        if warm is not None:
            self.warm = WarmYard(*at, root=warm, tasks=self.tasks, book=book, told=told)
        self.space = DiskSpace(
            context, crew=crew, book=book, pinning=self.pinning, told=told, hot=self.yard, warm=self.warm
        )
        self.residence = Residence(context, book, self.space, self.pinning, told, self.patience, self.warm)

    def build_desks(self) -> None:
        """Who begins things, and who takes their ends."""
        crew, patience, book, tasks = self.crew, self.patience, self.book, self.tasks
        self.failures = FailureDesk(self.context, crew, hot=self.yard, warm=self.warm)
        self.away = SourceAway(self.context, crew)
        self.landing = LandingDesk(self.context, book)
        growth = GrowthDesk(self.events, crew, book, self.space, self.yard)
        self.outcomes = SourceOutcomes(
            self.context,
            book=book,
            yard=self.yard,
            patience=patience,
            failures=self.failures,
            growth=growth,
        )
        self.actions = SourceActions(
            events=self.events,
            crew=crew,
            patience=patience,
            tasks=tasks,
            book=book,
            yard=self.yard,
            pinning=self.pinning,
            outcomes=self.outcomes,
        )
        self.moves = SetMoves(
            self.context,
            crew=crew,
            patience=patience,
            tasks=tasks,
            book=book,
            told=self.told,
            hot=self.yard,
            warm=self.warm,
            key_of=self.actions.key,
            set_invalid=self.outcomes.set_invalid,
            failures=self.failures,
        )
        self.requests = SetRequests(
            RequestBox(self.layout, STAGE_SHARD, self.events),
            book=book,
            yard=self.yard,
            outcomes=self.outcomes,
            patience=patience,
            pinning=self.pinning,
        )
        self.quarantine = QuarantineDesk(
            self.context, crew=crew, patience=patience, book=book, outcomes=self.outcomes, hot=self.yard
        )
        self.requests.verbs |= self.quarantine.verbs
        self.tokenizer = TokenizerDesk(
            self.context,
            crew=crew,
            patience=patience,
            pinning=self.pinning,
            tasks=tasks,
            book=book,
            outcomes=self.outcomes,
        )
        self.view = ShardView(
            once=self.context.once,
            limits=self.limits,
            crew=crew,
            patience=patience,
            tasks=tasks,
            book=book,
            pinning=self.pinning,
            hot=self.yard,
            warm=self.warm,
            space=self.space,
            residence=self.residence,
            outcomes=self.outcomes,
            requests=self.requests,
            moves=self.moves,
            tokenizer=self.tokenizer,
            failures=self.failures,
            shelf=self.shelf,
            files=FilesList(self.context),
            away=self.away,
            landing=self.landing,
        )
        self.parallelism = ParallelismDesk(
            self.context,
            crew=crew,
            book=book,
            residence=self.residence,
            headroom=lambda: self.failures.memory.facts.headroom_bytes,
        )
        self.imports = ImportDesk(self.context, self.view, self.told)
        self.requests.verbs |= self.imports.verbs
        self.room_desk = RoomDesk(self.view, self.actions)
        self.drain = Drain(self.context, self.view)

    def run(self) -> int:
        """The loop; returns the exit code."""
        self.pinning.refuse_another_build()
        self.crew.end_leftovers()
        self.watch_state()
        try:
            self.take_disks()
            begin_new_version(self.book, self.pinning, self.yard)
            restore_formers(self.book)
            acquit_for_other_columns(self.book, self.tasks.columns_read)
            if self.context.pipeline.warm is None:
                forget_copies(self.book, self.events)
            self.tokenizer.start_if_ready()  # a given one waits for nothing
            self.context.ready("looking at hot")
            while not self.context.stopping:
                try:
                    if self.turn():
                        return self.drain.farewell()
                except StorageError as problem:
                    wait_for_state(self.context, problem)
                    self.yard.look_soon()
                    self.warm.look_soon()
                except WorkerNotStarted as problem:
                    wait_for_processes(self.context, problem)
        finally:
            self.context.log.footer.clear()
            self.crew.stop()
            with contextlib.suppress(StorageError):  # the next start counts anew
                self.space.refresh(linked=self.outcomes.linked)
        return self.drain.stopped()

    def turn(self) -> bool:
        """Look, act, tell, wait, hear; True when --once has nothing left to do."""
        self.observe()
        self.act()
        self.tell()
        if self.context.once and self.drain.is_over():
            return True
        self.wait()
        self.hear_workers()
        return False

    # Beginning

    def watch_state(self) -> None:
        """Wake up when a receipt, the listing, a request, a claim or what a run holds is written."""
        for directory in (self.layout.receipts, self.layout.receipts / "listings"):
            self.context.waiter.watch(directory)
        self.context.waiter.watch(self.layout.requests(STAGE_SHARD))
        self.context.waiter.watch(self.layout.ledger(STAGE_SHARD).parent)
        self.residence.watch()

    def take_disks(self) -> None:
        """Own hot and warm before anything is told or done; another owner ends this daemon (75)."""
        began = time.monotonic()
        while any(yard.waits_for_owner(began) for yard in (self.yard, self.warm)):
            for yard in (self.yard, self.warm):
                yard.keep_owned()
            self.view.receipts = self.shelf.read()  # while their listers start
            self.context.waiter.wait(0.1)
            self.hear_workers()
        for yard in (self.yard, self.warm):
            yard.look_if_due()

    # Observing

    def observe(self) -> None:
        """Read again what others write, and keep hot owned."""
        self.view.receipts = self.shelf.read()
        self.view.listing = self.listing.read() or self.view.listing
        if not self.shelf.behind:
            self.view.files.check(self.view.listing, self.view.receipts, self.book.sources)
        self.requests.read()
        self.residence.look()
        self.failures.look()
        self.parallelism.look()
        self.view.limits = self.parallelism.bounded(self.limits)
        self.outcomes.settle_doubts()
        for yard in (self.yard, self.warm):
            yard.keep_owned()
            yard.look_if_due()
        self.space.refresh(linked=self.outcomes.linked)
        self.outcomes.growth.act(linked=self.outcomes.linked)

    # Acting

    def act(self) -> None:
        """Do what is to be done until there is no more of it; then tidiness, room and the pin."""
        self.quarantine.act(self.view.receipts)
        if not self.yard.known or self.warm.undecided:
            return
        self.residence.choose(self.view.doing("hydrate"))
        while self.takes_a_step():
            self.space.refresh(linked=self.outcomes.linked)
        self.decided_on = self.book.changes
        self.tokenizer.start_if_ready()
        self.imports.begin()
        for yard in (self.yard, self.warm):
            yard.sweep()
        self.room_desk.make_room()
        self.landing.act(self.view.situation)
        self.pinning.keep_listing(self.view.listing, self.book.sources)

    def takes_a_step(self) -> bool:
        """Begin the moves that may begin, then do what the schedule says; False when that changed nothing."""
        now, before = time.monotonic(), (self.book.changes, self.crew.busy)
        moves = decide_moves(self.view.situation(), self.view.shelves(), now)
        for move in moves:
            self.moves.do(move)
        if moves:
            self.space.refresh(linked=self.outcomes.linked)
        actions = decide(self.view.situation(), now)
        for action in actions:
            self.actions.do(action, self.view.receipts.get(action.path))
        return (self.book.changes, self.crew.busy) != before

    # Hearing, telling, waiting, ending

    def hear_workers(self) -> None:
        """Take in what the workers said and how they ended."""
        yards = {name: yard for yard in (self.yard, self.warm) for name in (yard.lister, yard.sweeper)}
        for job, messages, ended in self.crew.hear():
            yard = yards.get(job.subject)
            for message in messages:
                self._take_message(job, message, yard)
            if ended is None:
                continue
            self.failures.count(job, ended)
            self.away.take(job, ended)
            if yard is not None:
                yard.ended(job, ended)
                continue
            self.yard.measure_soon()
            if job.subject == TOKENIZER:
                self.tokenizer.ended(job, ended, self.view.receipts)
            elif job.kind in MOVES:
                self.moves.ended(job, ended)
            elif job.kind == "import":
                self.imports.ended(job, ended)
            elif self.quarantine.takes(job):
                self.quarantine.ended(job, ended, self.view.receipts)
            elif job.facts.get("asked"):
                self.requests.ended(job, ended)
            else:
                source = self.book.sources[job.subject]
                key = self.actions.key(source) if self.pinning.pin is not None else None
                self.outcomes.ended(job, ended, self.view.receipts.get(source.path), key)

    def _take_message(self, job: Job[Any], message: dict[str, Any], yard: Yard | NoWarm | None) -> None:
        if yard is not None:
            yard.hear(message)
        elif job.kind == "import":
            self.imports.hear(job, message)
        elif job.kind != "tokenizer":
            self.outcomes.hear(job, message)
        self.board.hear(job, message)

    def tell(self) -> None:
        """Status, metrics and the service manager's watchdog, all from one snapshot."""
        disks = self.disk_board.show(self.residence.wants, self.view.doing("hydrate"))
        troubles = (self.failures.standing, self.away.trouble, self.space.short, self.warm.trouble)
        standing = next(filter(None, (*troubles, self.space.warm_short)), "")
        shown = {**disks, **self.failures.show(), **self.parallelism.show()}
        shown |= self.landing.show(self.view.receipts)
        self.board.show(self.book, self.pinning.pin, self.yard.trouble, standing, shown)

    def wait(self) -> None:
        """Sleep until a worker, a record, a request or a signal has something, or something falls due."""
        now = time.monotonic()
        desks = (self.residence, self.failures, self.parallelism, self.landing)
        dues = (*self.patience.not_before.values(), self.away.until, *(desk.due for desk in desks))
        later = [due for due in dues if due > now]
        if self.shelf.due is not None:
            later.append(self.shelf.due)
        if self.book.changes != self.decided_on:  # an intent was written: it is acted on at once
            later.append(now)
        self.crew.wait(max(0.0, min([now + LONGEST_WAIT_S, *later]) - now))
