"""What the stage-shard loop sees at a moment, as the pure decisions want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from stoker.corpus.records.index import KEY16
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.record_dir import Shelf
from stoker.corpus.schedule.decide import differs
from stoker.corpus.schedule.moves import Shelves, recallable
from stoker.corpus.schedule.state import Limits, Situation
from stoker.kit.workers.pool import WorkerPool
from stoker.kit.workers.retries import Retries
from stoker.store.files import TEMPORARY
from stokerd.common.files_list import FilesList
from stokerd.sharding.copies import SetMoves
from stokerd.sharding.disks import TRIES_ONCE
from stokerd.sharding.failures import FailureDesk
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.landing import LandingDesk
from stokerd.sharding.outcomes import SourceOutcomes, paused
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.placement import Residence
from stokerd.sharding.requests import SetRequests
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.source_unavailable import SourceAway
from stokerd.sharding.space import DiskSpace
from stokerd.sharding.tasks import ShardTasks
from stokerd.sharding.tokenizer import TokenizerDesk
from stokerd.sharding.warm_disk import NoWarm, WarmYard

PAUSABLE = ("stage", "build", "sync", "hydrate")


@dataclass
class ShardView:
    """Everything there is to look at; `receipts` and `listing` as they were last read."""

    once: bool
    limits: Limits
    crew: WorkerPool[Any]
    patience: Retries
    tasks: ShardTasks
    book: SourceBook
    pinning: Pinning
    hot: HotYard
    warm: WarmYard | NoWarm
    space: DiskSpace
    residence: Residence
    outcomes: SourceOutcomes
    requests: SetRequests
    moves: SetMoves
    tokenizer: TokenizerDesk
    shelf: Shelf[Receipt]
    failures: FailureDesk
    files: FilesList
    away: SourceAway
    landing: LandingDesk
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    listing: Listing | None = None
    _unlike: set[str] = field(default_factory=set)

    def situation(self) -> Situation:
        """What the schedule decides on."""
        shelved = self.outcomes.disputes(self.receipts)
        if self.once:
            tried = self.patience.not_before  # who failed at all waits for something
            shelved += [path for path in tried if self.patience.failures(path) >= TRIES_ONCE]
        wanted = self.tokenizer.choose(self.listing)
        if self.files.names is not None:  # the tokenizer's files are brought whatever the list says
            shelved += self.files.left_out(self.receipts.keys() | self.book.sources.keys(), but=wanted)
        limits, alone = self.failures.limited(self.limits, self._may_build)
        shelved += self.failures.memory.held_back(alone)
        shelved += self.outcomes.growth.held_back()
        situation = Situation(
            receipts=self.receipts,
            sources=self.book.sources,
            limits=limits,
            key_of=self.pinning.key_of(),
            published=self.hot.published,
            busy=self.busy(),
            convicted=self.outcomes.convicted.keys(),
            invalid_sets=self.outcomes.invalid_sets.keys(),
            to_prove=self.requests.to_prove,
            wanted=wanted,
            shelved=frozenset(shelved),
            beyond=self.beyond(),
            in_line=self._in_line(limits.builders),
            differing=self._differing(),
            uncertain=self.warm.configured and not self.warm.known,
            not_before=self.patience.not_before,
            paused_until={each: self._paused_until(each) for each in PAUSABLE},
            room=self.space.schedule_room(wanted, self.residence.wants.cold_bytes),
        )
        urgent = self.urgent(situation) | ({alone} if alone is not None else frozenset())
        return replace(situation, recallable=recallable(situation, self.shelves()), urgent=urgent)

    def _paused_until(self, activity: str) -> float:
        until = max(self.patience.not_before.get(paused(activity), 0.0), self.failures.paused_until(activity))
        return max(until, self.away.until) if activity == "stage" else until

    def _may_build(self, path: str) -> bool:
        source = self.book.sources.get(path)
        ready = source is not None and source.state in ("staged", "building")
        idle = path not in self.crew and path not in self.outcomes.convicted
        return ready and idle and self.patience.allows(path)

    def urgent(self, situation: Situation) -> frozenset[str]:
        """The paths of sets that a run waits for and that have to be made again."""
        keys, key_of = self.residence.urgent(), situation.key_of
        if not keys or key_of is None:
            return frozenset()
        return frozenset(self.book.sources.open_with((key[:KEY16] for key in keys), key_of))

    def shelves(self) -> Shelves:
        """What lies on warm, what is wanted back, and what warm has room for."""
        return Shelves(
            warm=self.warm.published,
            warm_answers=self.warm.known,
            warm_writable=self.warm.writable,
            hydrate=self.residence.wants.hydrate,
            wanted=self.residence.wants.wanted,
            rotten=frozenset(self.moves.rotten),
            sync_room=self.space.for_syncs(),
            bytes_of=self.space.estimate.published,
        )

    def beyond(self) -> frozenset[str]:
        """What the configured slice of the source leaves out."""
        if not self.pinning.is_bounded:
            return frozenset()
        known = self.receipts.keys() | self.book.sources.keys()
        part = self.pinning.slice(self.listing, self.book.sources, known)
        return frozenset() if part is None else part.beyond

    def _in_line(self, builders: int) -> frozenset[str] | None:
        """What may be built while it is not known where the slice ends: no more beyond it than need be."""
        part = self.pinning.slice(self.listing, self.book.sources)
        return frozenset(part.in_line[:builders]) if part is not None and part.in_line else None

    def busy(self) -> dict[str, str]:
        """The activity each path is in; one whose files are being removed from a disk is in it too."""
        busy = {path: each for path, each in self.crew.busy.items() if path in self.book.sources}
        for place in self.hot.clearing | self.warm.clearing:
            for path in self._using(place):
                busy.setdefault(path, "sweep")
        return busy

    def _using(self, place: str) -> list[str]:
        """The paths that have to do with a file or directory that is being removed from a disk."""
        if (path := self.hot.litter_of.get(place)) is not None:
            return [path] if path in self.book.sources else []
        named = PurePath(place)
        if named.parent.name == ".trash":  # nobody's any more
            return []
        # What is named by a set's key: the set itself, a copy of it in the making, a build and its lock.
        key = named.name.removeprefix(TEMPORARY).removesuffix(".lock")[:KEY16]
        catalog, key_of = self.book.sources, self.pinning.key_of()
        owner = catalog.of_key(key)
        paths = [] if owner is None else list(catalog.with_content(catalog[owner].sha256))
        return paths + ([] if key_of is None else catalog.open_with((key,), key_of))

    def _differing(self) -> set[str]:
        """The paths whose receipt names other content than their record; only what changed is looked at."""
        changed = self.shelf.take_changed() | self.book.take_touched()
        self.landing.note(changed)
        for path in changed:
            if differs(self.book.sources.get(path), self.receipts.get(path)):
                self._unlike.add(path)
            else:
                self._unlike.discard(path)
        return self._unlike

    def doing(self, activity: str) -> list[str]:
        """The paths with which this is going on."""
        return [path for path, each in self.crew.busy.items() if each == activity]
