"""What the stage-shard loop does with a source: a record is written at once, work is given to a worker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stoker.corpus.receipts import Receipt
from stoker.corpus.schedule import (
    Action,
    Build,
    Duplicate,
    Prove,
    Quarantine,
    QuarantineSet,
    Release,
    Renew,
    Sample,
    Stage,
    Withdraw,
)
from stoker.corpus.sources import PUBLISHED, Source
from stoker.kit.events import Events
from stokerd.crew import Crew, Job, Patience
from stokerd.hot_yard import HotYard
from stokerd.pinning import Pinning
from stokerd.shard_tasks import MODULES, WARM, ShardTasks
from stokerd.source_book import SourceBook
from stokerd.source_outcomes import SourceOutcomes


class SourceActions:
    """Takes what the schedule decided."""

    def __init__(
        self,
        *,
        events: Events,
        crew: Crew,
        patience: Patience,
        tasks: ShardTasks,
        book: SourceBook,
        yard: HotYard,
        pinning: Pinning,
        outcomes: SourceOutcomes,
    ) -> None:
        self._events, self._crew, self._patience, self._tasks = events, crew, patience, tasks
        self._book, self._yard, self._pinning, self._outcomes = book, yard, pinning, outcomes

    def do(self, action: Action, receipt: Receipt | None) -> None:
        """Take one action; `receipt` is its path's."""
        if isinstance(action, Renew):
            assert receipt is not None  # it is what the path is renewed from
            self._renew(action.path, receipt)
            return
        source = self._book.sources[action.path]
        match action:
            case Withdraw():
                self._yard.discard(self._tasks.parquet(source))
                self._yard.discard_build(source)
                self._book.renew(source, "it is beyond dataset.limit")
            case Duplicate(of=other):
                self._book.write(source.moved("duplicate", reason=f"same content as {other}"))
                if source.state == "staged":
                    self._yard.discard(self._tasks.parquet(source))
                self._events.record("source_duplicate", path=source.path, of=other)
            case Stage(decode=decode):
                assert receipt is not None  # nothing else is staged
                self._start("stage", source, self._tasks.stage(source, receipt, decode=decode))
            case Sample():
                assert self._pinning.pin is not None  # there is a tokenizer to try
                self._start("sample", source, self._tasks.sample(source, self._pinning.pin))
            case Build():
                self._start_build(source)
            case Prove():
                job = self._start("prove", source, self._tasks.prove(source, self.key(source)))
                job.note["asked"] = source.state in PUBLISHED
            case Quarantine():
                finding = self._outcomes.convicted[source.path]
                self._start("quarantine", source, self._tasks.quarantine(source, finding))
            case QuarantineSet():
                key, reason = self.key(source), self._outcomes.invalid_sets[source.path]
                task = self._tasks.quarantine_set(source, key, reason)
                self._start("quarantine", source, task).note["set"] = key[:16]
            case Release():
                self._start("release", source, {"remove": [self._tasks.parquet(source)]})

    def unstage(self, first: Source, keep: Collection[str]) -> None:
        """Give back the room of one staged file, which comes back later; a hard link gives none.

        For a build that cannot end without it, or for a file that the tokenizer waits for; `keep` are the
        contents it is trained on.
        """
        sources = self._book.sources.values()
        staged = [one for one in sources if one.state == "staged" and one is not first]
        spare = [one for one in staged if one.sha256 not in keep]
        if spare and not self._outcomes.linked:
            source = max(spare, key=lambda one: one.path)
            self._yard.discard(self._tasks.parquet(source))
            self._book.renew(source, f"{first.path} needs its room first")

    def key(self, source: Source) -> str:
        """The key of the source's set in the pinned build."""
        key_of = self._pinning.key_of()
        assert key_of is not None  # nothing is built or proven before the dataset is pinned
        return key_of(source.sha256)

    def _start(self, activity: str, source: Source, task: dict[str, Any]) -> Job:
        module, quiet_s = MODULES[activity]
        warm = activity in WARM
        return self._crew.start(activity, source.path, module, task, quiet_s=quiet_s, warm=warm)

    def _renew(self, path: str, receipt: Receipt) -> None:
        source = self._book.sources.get(path)
        if source is None:
            self._book.write(Source(self._book.dataset, path, receipt.size, receipt.sha256))
            return
        self._yard.discard_build(source)
        self._outcomes.convicted.pop(path, None)
        self._patience.succeeded(path)
        changed = source.sha256 != receipt.sha256
        reason = "its content changed" if changed else "the shard set of its content is gone"
        self._book.renew(source, reason, size=receipt.size, sha256=receipt.sha256)

    def _start_build(self, source: Source) -> None:
        pin = self._pinning.pin
        assert pin is not None  # the schedule builds nothing before it
        building = source.moved("building", key=self.key(source))
        if building != source:
            self._book.write(building)
        self._start("build", building, self._tasks.build(building, pin))
