"""What the stage-shard loop does with a source: a record is written at once, work is given to a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source, former_name
from stoker.corpus.schedule.actions import (
    Action,
    Build,
    Duplicate,
    Forsake,
    GiveUp,
    Prove,
    Quarantine,
    QuarantineSet,
    Release,
    Renew,
    Replace,
    Stage,
    Withdraw,
)
from stoker.kit.events import Events
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.kit.workers.retries import Retries
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.outcomes import SourceOutcomes
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.tasks import ACTIVITIES, ShardTasks


class SourceActions:
    """Takes what the schedule decided."""

    def __init__(
        self,
        *,
        events: Events,
        crew: WorkerPool[Any],
        patience: Retries,
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
        if isinstance(action, Renew | Replace | GiveUp):
            assert receipt is not None  # it is what the record is made from
            self._follow(action, receipt)
            return
        source = self._book.sources[action.path]
        match action:
            case Withdraw():
                self._discard_parquet(source)
                self._yard.discard_build(source)
                self._book.renew(source, "it is beyond dataset.limit")
            case Duplicate(of=other):
                self._duplicate(source, other)
            case Forsake():
                self._forsake(source)
            case Stage(decode=decode):
                assert receipt is not None  # nothing else is staged
                task = self._tasks.stage(source, receipt, decode=decode)
                self._start("stage", source, task).facts["receipt"] = receipt
            case Build():
                self._start_build(source)
            case Prove():
                job = self._start("prove", source, self._tasks.prove(source, self.key(source)))
                job.facts["asked"] = source.state in PUBLISHED
            case Quarantine():
                finding = self._outcomes.convicted[source.path]
                self._start("quarantine", source, self._tasks.quarantine(source, finding))
            case QuarantineSet():
                key, reason = self.key(source), self._outcomes.invalid_sets[source.path]
                task = self._tasks.quarantine_set(source, key, reason)
                self._start("quarantine", source, task).facts["set"] = key[:16]
            case Release():
                self._start("release", source, {"remove": [self._tasks.parquet(source)]})

    def unstage(self, first: Source, keep: Collection[str]) -> None:
        """Give back the room of one staged file, which comes back later; a hard link gives none.

        For a build that cannot end without it, or for a file that the tokenizer waits for; `keep` are the
        contents it is trained on.
        """
        staged = [one for one in self._book.sources.in_state("staged") if one is not first]
        spare = [one for one in staged if one.sha256 not in keep]
        if spare and not self._outcomes.linked:
            source = max(spare, key=lambda one: one.path)
            self._discard_parquet(source)
            self._book.renew(source, f"{first.path} needs its room first")

    def key(self, source: Source) -> str:
        """The key of the source's set in the pinned build."""
        key_of = self._pinning.key_of()
        assert key_of is not None  # nothing is built or proven before the dataset is pinned
        return key_of(source.sha256)

    def _start(self, activity: str, source: Source, task: dict[str, Any]) -> Job[Any]:
        task["disks"] = [self._yard.mark] if self._yard.mark else []
        return self._crew.start(ACTIVITIES[activity], source.path, task, {})

    def _duplicate(self, source: Source, other: str) -> None:
        self._book.write(source.moved("duplicate", reason=f"same content as {other}"))
        if source.state in ("staged", "building"):
            self._discard_parquet(source)
        self._yard.discard_build(source)  # begun before it was known whose the set is
        self._events.record("source_duplicate", path=source.path, of=other)

    def _forsake(self, source: Source) -> None:
        reason = "its shard set is gone, and no file has this content any more"
        self._book.write(source.moved("quarantined", reason="content_gone"))
        self._events.record("content_gone", level="error", path=source.path, reason=reason)

    def _discard_parquet(self, source: Source) -> None:
        self._yard.discard(self._tasks.parquet(source), of=source.path)

    def _keep_former(self, source: Source, receipt: Receipt) -> None:
        """Keep the proven set of a content that its file does not have any more, in a record of its own.

        That is written first: cut off here, the change is still to be seen, and the same record is written.
        """
        name = former_name(self._book.sources, source)
        self._book.write(replace(source, path=name, former=source.path, formers=()))
        self._events.record(
            "source_changed_after_build",
            level="warning",
            path=source.path,
            former=name,
            sha256=receipt.sha256,
            reason=f"its shard set stays, as that of {name}; the new content is built beside it. "
            "To have the new one alone raise dataset.version",
        )

    def _follow(self, action: Renew | Replace | GiveUp, receipt: Receipt) -> None:
        if isinstance(action, GiveUp):
            self._outcomes.given_up(receipt)
            return
        if isinstance(action, Replace):
            self._keep_former(self._book.sources[action.path], receipt)
        self._renew(action.path, receipt)

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
        if source.never_came:
            reason = "its file came after all"
        self._book.renew(source, reason, size=receipt.size, sha256=receipt.sha256)

    def _start_build(self, source: Source) -> None:
        pin = self._pinning.pin
        assert pin is not None  # the schedule builds nothing before it
        building = source.moved("building", key=self.key(source))
        if building != source:
            self._book.write(building)
        task = self._tasks.build(building, pin, self._outcomes.staged_xxh3(source))
        task["read_rows"] = self._outcomes.failures.memory.read_rows(source.path)
        task["room"] = self._outcomes.growth.begin(building)
        self._start("build", building, task)
