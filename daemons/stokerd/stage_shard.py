"""The stage-shard loop: stage -> preflight -> build -> prove -> release, a worker a file, many files at once.

Each turn looks at receipts, source records and what the workers said, asks the schedule what to do, does it,
and records each fact after it is durable; so a restart repeats at most what can be repeated.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

from stoker.corpus.listing import Listing, read_listing
from stoker.corpus.receipts import Receipt, receipt_shelf
from stoker.corpus.schedule import (
    Action,
    Build,
    Duplicate,
    Limits,
    Prove,
    Quarantine,
    QuarantineSet,
    Release,
    Renew,
    Situation,
    Stage,
    Withdraw,
    changed_after_build,
    decide,
)
from stoker.corpus.sources import TERMINAL, Source
from stoker.kit.daemon import DaemonContext, daemon_main
from stoker.store.errors import StorageError
from stoker.store.layout import STAGE_SHARD
from stoker.store.requests import finish_request, pending_requests
from stokerd.crew import Crew, Job, Patience
from stokerd.hot_yard import LISTER, SWEEP, TRIES_ONCE, HotYard
from stokerd.pinning import Pinning
from stokerd.shard_board import ShardBoard, Totals
from stokerd.shard_tasks import MODULES, ShardTasks
from stokerd.source_book import SourceBook
from stokerd.source_outcomes import SourceOutcomes, paused
from stokerd.state_trouble import wait_for_state
from stokerd.tokenizer_desk import TOKENIZER, TokenizerDesk

LONGEST_WAIT_S = 5.0
STAGERS, PROVERS = 2, 2


def main() -> int:
    """The command `stoker-stage-shard FILE [--once]`."""
    return daemon_main(STAGE_SHARD, story, sys.argv[1:])


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
            stagers=STAGERS if pipeline.stage.copies == "auto" else pipeline.stage.copies,
            builders=len(os.sched_getaffinity(0))
            if pipeline.shard.workers == "auto"
            else pipeline.shard.workers,
            provers=PROVERS,
            queue_files=pipeline.stage.queue_files,
            queue_bytes=pipeline.stage.queue_bytes,
            release="after_proof" if pipeline.shard.release == "after_proof" else "never",
        )
        self.crew = Crew(f"{self.layout.state}:{STAGE_SHARD}", context.waiter)
        self.patience = Patience()
        self.tasks = ShardTasks(pipeline)
        self.board = ShardBoard(context, self.crew)
        self.pinning = Pinning(pipeline, self.events)
        self.book = SourceBook(self.layout, self.dataset, self.events)
        self.yard = HotYard(context, self.crew, self.patience, self.tasks, self.book)
        self.outcomes = SourceOutcomes(context, self.book, self.yard, self.patience)
        self.tokenizer = TokenizerDesk(
            context,
            crew=self.crew,
            patience=self.patience,
            pinning=self.pinning,
            tasks=self.tasks,
            book=self.book,
            outcomes=self.outcomes,
        )

        self.shelf = receipt_shelf(self.layout, self.dataset)
        self.receipts: dict[str, Receipt] = {}
        self.listing: Listing | None = None
        self.told_changed: set[str] = set()

    def run(self) -> int:
        """The loop; returns the exit code."""
        self.pinning.refuse_another_build()
        self.crew.end_leftovers()
        self.watch_state()
        try:
            self.take_hot()
            self.begin_new_version()
            self.acquit_for_other_columns()
            self.context.ready("looking at hot")
            while not self.context.stopping:
                try:
                    if self.turn():
                        return self.farewell()
                except StorageError as problem:
                    wait_for_state(self.context, problem)
                    self.yard.look_soon()
        finally:
            self.crew.stop()
        return 0

    def turn(self) -> bool:
        """Look, act, tell, wait, hear; True when --once has nothing left to do."""
        self.observe()
        self.act()
        self.tell()
        if self.context.once and self.is_drained():
            return True
        self.wait()
        self.hear_workers()
        return False

    # Beginning

    def watch_state(self) -> None:
        """Wake up when a receipt, the listing or a request is written."""
        for directory in (self.layout.receipts, self.layout.receipts / "listings"):
            self.context.waiter.watch(directory)
        self.context.waiter.watch(self.layout.requests(STAGE_SHARD))

    def take_hot(self) -> None:
        """Own the hot directory before anything is told or done; another owner ends this daemon (75)."""
        began = time.monotonic()
        while self.yard.waits_for_owner(began):
            self.yard.keep_owned()
            self.context.waiter.wait(0.1)
            self.hear_workers()

    def begin_new_version(self) -> None:
        """Start every source anew when dataset.version was raised: the sets there are are another build's."""
        if self.pinning.earlier is None or self.pinning.pin is not None:
            return
        for source in list(self.book.sources.values()):
            if source.state in TERMINAL or source.state == "building":
                self.yard.discard_build(source)
                self.book.renew(source, "new dataset version")

    def acquit_for_other_columns(self) -> None:
        """Start sources anew that were quarantined for a column which the configuration no longer reads."""
        for source in list(self.book.sources.values()):
            blamed = source.column if source.state == "quarantined" else None
            if blamed is not None and blamed not in self.tasks.columns_read:
                self.book.renew(source, f"it was quarantined for column {blamed!r}, which is not read now")

    # Observing

    def observe(self) -> None:
        """Read again what others write, and keep hot owned."""
        self.receipts = self.shelf.read()
        self.listing = read_listing(self.layout, self.dataset) or self.listing
        for request in pending_requests(self.layout, STAGE_SHARD):
            finish_request(self.layout, STAGE_SHARD, request, {"refused": f"unknown verb {request.verb}"})
        self.yard.keep_owned()
        self.yard.look_if_due()

    def situation(self) -> Situation:
        """What the schedule decides on."""
        shelved = self.outcomes.disputes(self.receipts)
        if self.context.once:
            shelved += [path for path in self.book.sources if self.patience.failures(path) >= TRIES_ONCE]
        return Situation(
            receipts=self.receipts,
            sources=self.book.sources,
            limits=self.limits,
            key_of=self.pinning.key_of(),
            published=frozenset(self.yard.published),
            busy=self.busy(),
            convicted=self.outcomes.convicted.keys(),
            invalid_sets=self.outcomes.invalid_sets.keys(),
            wanted=self.tokenizer.choose(self.listing),
            shelved=frozenset(shelved),
            beyond=self.beyond(),
            not_before=self.patience.not_before,
            paused_until={
                activity: self.patience.not_before.get(paused(activity), 0.0)
                for activity in ("stage", "build")
            },
        )

    def beyond(self) -> frozenset[str]:
        """What the configured slice of the source leaves out."""
        known = self.receipts.keys() | self.book.sources.keys()
        part = self.pinning.slice(self.listing, self.book.sources, known)
        return frozenset() if part is None else part.beyond

    def busy(self) -> dict[str, str]:
        """The activity each path is in; one whose files on hot are being removed is in it too."""
        busy = {path: each for path, each in self.crew.busy.items() if path in self.book.sources}
        clearing, key_of = self.yard.clearing, self.pinning.key_of()
        for path, source in self.book.sources.items() if clearing else ():
            key = source.key if key_of is None else key_of(source.sha256)
            if clearing & {self.tasks.parquet(source), self.tasks.building(str(key))}:
                busy.setdefault(path, "sweep")
        return busy

    # Acting

    def act(self) -> None:
        """Do what the schedule says, until it says no more; then the tokenizer, tidiness and the pin."""
        if not self.yard.known:
            return
        while actions := decide(self.situation(), time.monotonic()):
            for action in actions:
                self.do(action)
        self.tell_changed()
        self.tokenizer.start_if_ready()
        self.yard.sweep()
        self.pinning.keep_listing(self.listing, self.book.sources)

    def do(self, action: Action) -> None:
        """Take one action: a record is written at once, work is given to a worker."""
        if isinstance(action, Renew):
            self._renew(action.path)
            return
        source = self.book.sources[action.path]
        match action:
            case Withdraw():
                self.yard.discard(self.tasks.parquet(source))
                self.yard.discard_build(source)
                self.book.renew(source, "it is beyond dataset.limit")
            case Duplicate(of=other):
                self.book.write(source.moved("duplicate", reason=f"same content as {other}"))
                if source.state == "staged":
                    self.yard.discard(self.tasks.parquet(source))
                self.events.record("source_duplicate", path=source.path, of=other)
            case Stage(decode=decode):
                receipt = self.receipts[source.path]
                self._start("stage", source, self.tasks.stage(source, receipt, decode=decode))
            case Build():
                self._start_build(source)
            case Prove():
                self._start("prove", source, self.tasks.prove(source, self._key(source)))
            case Quarantine():
                finding = self.outcomes.convicted[source.path]
                self._start("quarantine", source, self.tasks.quarantine(source, finding))
            case QuarantineSet():
                key, reason = self._key(source), self.outcomes.invalid_sets[source.path]
                task = self.tasks.quarantine_set(source, key, reason)
                self._start("quarantine", source, task).note["set"] = key[:16]
            case Release():
                self._start("release", source, {"remove": [self.tasks.parquet(source)]})

    def _start(self, activity: str, source: Source, task: dict[str, Any]) -> Job:
        module, quiet_s = MODULES[activity]
        return self.crew.start(activity, source.path, module, task, quiet_s=quiet_s)

    def _renew(self, path: str) -> None:
        source, receipt = self.book.sources.get(path), self.receipts[path]
        if source is None:
            self.book.write(Source(self.dataset, path, receipt.size, receipt.sha256))
            return
        self.yard.discard_build(source)
        self.outcomes.convicted.pop(path, None)
        self.patience.succeeded(path)
        changed = source.sha256 != receipt.sha256
        reason = "its content changed" if changed else "the shard set of its content is gone"
        self.book.renew(source, reason, size=receipt.size, sha256=receipt.sha256)

    def _start_build(self, source: Source) -> None:
        pin = self.pinning.pin
        assert pin is not None  # the schedule builds nothing before it
        building = source.moved("building", key=self._key(source))
        if building != source:
            self.book.write(building)
        self._start("build", building, self.tasks.build(building, pin))

    def _key(self, source: Source) -> str:
        key_of = self.pinning.key_of()
        assert key_of is not None  # nothing is built or proven before the dataset is pinned
        return key_of(source.sha256)

    def tell_changed(self) -> None:
        """Say once of each file that it changed after its set was proven: the set stays what it is."""
        for path in changed_after_build(self.book.sources, self.receipts):
            if path not in self.told_changed:
                self.told_changed.add(path)
                advice = "its shard set stays; raise dataset.version to build the new content"
                self.events.record("source_changed_after_build", level="warning", path=path, reason=advice)

    # Hearing, telling, waiting, ending

    def hear_workers(self) -> None:
        """Take in what the workers said and how they ended."""
        for job, messages, ended in self.crew.hear():
            self._take_messages(job, messages)
            if ended is None:
                continue
            if job.subject in (LISTER, SWEEP):
                self.yard.ended(job, ended)
            elif job.subject == TOKENIZER:
                self.tokenizer.ended(job, ended, self.receipts)
            else:
                source = self.book.sources[job.subject]
                key = self._key(source) if self.pinning.pin is not None else None
                self.outcomes.ended(job, ended, self.receipts.get(source.path), key)

    def _take_messages(self, job: Job, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if job.subject == LISTER:
                self.yard.hear(job, message)
            elif job.subject not in (TOKENIZER, SWEEP):
                self.outcomes.hear(job, message)
            if message["kind"] == "commit":
                self.board.committed(job, message["tokens"])

    def tell(self) -> None:
        """Status, metrics and the service manager's watchdog, all from one snapshot."""
        self.board.show(self.book.sources, self.pinning.pin, self.yard.trouble)

    def wait(self) -> None:
        """Sleep until a worker, a record, a request or a signal has something, or something falls due."""
        now = time.monotonic()
        later = [due for due in self.patience.not_before.values() if due > now]
        self.context.waiter.wait(max(0.0, min([now + LONGEST_WAIT_S, *later]) - now))

    def is_drained(self) -> bool:
        """Whether nothing is going on, and nothing would be done however long one waited."""
        if not self.yard.known or not self.yard.tidy or self.crew.busy.keys() - {LISTER}:
            return False
        return not decide(self.situation(), math.inf) and self.tokenizer.task() is None

    def farewell(self) -> int:
        """The last line of --once."""
        left = []
        beyond = self.beyond()
        open_ = sorted(
            path
            for path, source in self.book.sources.items()
            if source.state not in TERMINAL and path not in beyond
        )
        if self.tokenizer.training is not None:
            left.append("the tokenizer waits until enough of the listing is here")
        if open_:
            left.append(f"{len(open_)} not finished: {', '.join(open_[:3])}")
        self.context.log.info("drained", message=Totals.of(self.book.sources).summary(left))
        return 0


if __name__ == "__main__":
    sys.exit(main())
