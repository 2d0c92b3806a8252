"""The stage-shard loop's state as plain facts, changed by Effects and by the handlers of jobs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import cast

from stoker.config.schema import Pipeline
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import KEY16, Source
from stoker.corpus.schedule.state import Limits, Situation, WarmContents
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.kit.daemon import DaemonContext
from stoker.kit.loop import Retries
from stoker.kit.workers.pool import Job, WorkerPool
from stoker.plan.residency import urgency
from stoker.store.files import TEMPORARY
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.activities.base import TRIES_ONCE, BuildWork, Work
from stokerd.sharding.activities.disks import Disk
from stokerd.sharding.effects import Effect
from stokerd.sharding.limits import WRITERS, Pauses
from stokerd.sharding.placement import Placement
from stokerd.sharding.records import Records
from stokerd.sharding.space import Space


@dataclass
class Progress:
    """Counts since the start; `at` is the time of the last progress (time.time).

    Tokens built, ends of jobs by kind and outcome, bytes moved by kind, rechecks of quarantined files by
    verdict, entries dropped from quarantine by kind.
    """

    at: float = field(default_factory=time.time)
    built_tokens: int = 0
    ends: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    moved_bytes: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def committed(self, work: BuildWork, tokens: int) -> None:
        """Counts new tokens of a build's commit; a resumed build's first commit includes earlier tokens."""
        before, work.tokens = work.tokens, tokens
        if before is not None or not work.is_resumed:
            self.built_tokens += max(0, tokens - (before or 0))
        self.at = time.time()


class State:
    """All facts and jobs of the loop.

    `limits` bound the concurrent jobs; `is_linked`: the last file was staged by a hard link, which takes no
    space.
    """

    activities = ACTIVITIES

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        self.context, self.records = context, Records(context)
        self.progress = Progress()
        memory = pipeline.shard.memory
        self.pool = WorkerPool[Work](
            f"{context.layout.state}:{STAGE_SHARD}",
            context.waiter,
            record=context.events.record,
            most_rss_bytes=memory.hard,
            recycle_rss_bytes=memory.soft,
        )
        self.disks: tuple[Disk, ...] = (Disk("hot", pipeline.hot),)
        if pipeline.warm is not None:
            self.disks += (Disk("warm", pipeline.warm),)
        self.pauses = Pauses(context)
        self.space = Space(context)
        self.placement = Placement(context)
        self.is_linked = self.records.is_fetched and pipeline.warm is None  # until a hard link fails
        self.limits = Limits(
            stagers=1,
            builders=1,
            queue_files=pipeline.stage.queue_files,
            queue_bytes=pipeline.stage.queue_bytes,
            release=pipeline.shard.release,
        )

    # Existing work and data

    @property
    def pipeline(self) -> Pipeline:
        return self.context.pipeline

    @property
    def sources(self) -> Catalog:
        return self.records.sources

    @property
    def retries(self) -> Retries:
        return self.pauses.retries

    @property
    def hot(self) -> Disk:
        return self.disks[0]

    @property
    def warm(self) -> Disk | None:
        return self.disks[1] if len(self.disks) > 1 else None

    def key(self, source: Source) -> str:
        """Returns the key of the source's set in the pinned build."""
        key_of = self.records.pinning.key_of()
        assert key_of is not None  # no build or proof begins before the dataset is pinned
        return key_of(source.sha256)

    # Places

    def parquet(self, source: Source) -> str:
        """Returns the path of the source's file on hot."""
        return str(self.pipeline.hot_layout.parquet / parquet_name(source))

    def set_on(self, place: str, source: Source, key: str | None = None) -> Path:
        """Returns the path of the source's set on hot or warm."""
        layout = self.pipeline.hot_layout if place == "hot" else self.pipeline.warm_layout
        assert layout is not None  # moves to warm need a warm disk
        return layout.shard_set(source.dataset, str(key or source.key))

    def discard_parquet(self, source: Source) -> None:
        """Queues the source's file on hot for removal."""
        self.hot.discard(self.parquet(source), of=source.path)

    def discard_build(self, source: Source) -> None:
        """Queues the source's partial set for removal."""
        if source.key is not None:
            name = str(self.pipeline.hot_layout.building / source.key16)
            self.hot.discard(name, f"{name}.lock")

    # Jobs

    def start(self, kind: str, subject: str) -> Iterator[Effect]:
        """Returns the effects that begin a job."""
        return self.activities[kind].begin(self, subject)

    def doing(self, kind: str) -> list[str]:
        """Returns the subjects of the running jobs of a kind."""
        return [subject for subject, each in self.pool.busy.items() if each == kind]

    def builds(self) -> list[Job[BuildWork]]:
        return [cast(Job[BuildWork], job) for job in self.pool.jobs if job.kind == "build"]

    def is_idle(self) -> bool:
        """Whether no worker but the listers is busy."""
        return not self.pool.busy.keys() - {disk.lister for disk in self.disks}

    def busy(self) -> dict[str, str]:
        """Returns the job kind by path; a path whose files are being removed from a disk is busy too."""
        busy = {path: each for path, each in self.pool.busy.items() if path in self.sources}
        for disk in self.disks:
            for place, of in disk.litter.items():
                for path in self._using(place) if of is None else (of,):
                    busy.setdefault(path, "sweep")
        return busy

    def _using(self, place: str) -> list[str]:
        """Returns the paths that use a file or directory that is being removed from a disk."""
        named = PurePath(place)
        if named.parent.name == ".trash":
            return []
        # Named by a set's key: the set, an unfinished copy of it, a build and its lock.
        key = named.name.removeprefix(TEMPORARY).removesuffix(".lock")[:KEY16]
        owner, key_of = self.sources.of_key(key), self.records.pinning.key_of()
        paths = [] if owner is None else list(self.sources.with_content(self.sources[owner].sha256))
        return paths + ([] if key_of is None else self.sources.open_with({key}, key_of))

    # Decision inputs

    def situation(self) -> Situation:
        """Returns the facts that the schedule decides on, as of now."""
        records, pinning, memory = self.records, self.records.pinning, self.pauses.memory
        wanted = pinning.choose_training()
        limits, alone, waiting = memory.plan(self)
        records.compare_touched()
        key_of = pinning.key_of()
        lost = {key[:KEY16] for key in urgency(self.placement.holdings)}  # unless a set of the key exists
        urgent = [] if key_of is None else self.sources.open_with(lost, key_of)
        return Situation(
            receipts=records.receipts,
            sources=self.sources,
            limits=limits,
            key_of=key_of,
            published=self.hot.published,
            busy=self.busy(),
            convicted=records.convicted.keys(),
            to_prove=records.to_prove.keys(),
            wanted=wanted,
            shelved=frozenset((*self._left_alone(wanted), *waiting)),
            beyond=pinning.beyond,
            differing=records.differing,
            uncertain=self.warm is not None and not self.warm.is_known,
            not_before=self.retries.not_before,
            paused_until={kind: self.pauses.until(kind, self) for kind in WRITERS},
            outgrown=self.space.outgrown.keys(),
            rooms=self.space.rooms(self, wanted, self.placement.wants.cold_bytes),
            urgent=frozenset((*urgent, alone) if alone is not None else urgent),
            warm=self._warm_contents(),
        )

    def _left_alone(self, wanted: frozenset[str]) -> list[str]:
        """Returns the paths that no work begins on now."""
        records = self.records
        paths = [path for path, one in records.disputed.items() if records.receipts.get(path) is one]
        if self.context.once:  # any failure may be waiting for its retry time
            failed = self.retries.not_before
            paths += [path for path in failed if self.retries.failures(path) >= TRIES_ONCE]
        if records.only is not None:  # the tokenizer's files are staged even if the list omits them
            paths += (records.receipts.keys() | self.sources.keys()) - records.only - wanted
        return paths

    def _warm_contents(self) -> WarmContents:
        """Returns the sets on warm, those wanted back, and the free space there."""
        if self.warm is None:
            return WarmContents()
        return WarmContents(
            published=self.warm.published,
            answers=self.warm.is_known,
            writable=self.warm.is_writable,
            hydrate=self.placement.wants.hydrate,
            wanted=self.placement.wants.wanted,
            rotten=self.records.rotten,
        )

    @property
    def next_due(self) -> float:
        """Returns the next time, on the monotonic clock, at which work is due without a wake-up."""
        now = time.monotonic()
        dues = (*self.retries.not_before.values(), self.placement.due)
        return min((due for due in dues if due > now), default=float("inf"))
