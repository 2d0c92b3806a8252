"""What the stage-shard loop sees at a moment, as the pure decisions want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stoker.corpus.listing import Listing
from stoker.corpus.moves import Shelves, recallable
from stoker.corpus.receipts import Receipt
from stoker.corpus.schedule import Limits, Situation
from stoker.corpus.sources import TERMINAL
from stokerd.crew import Crew, Patience
from stokerd.disk_space import DiskSpace
from stokerd.hot_yard import HotYard
from stokerd.pinning import Pinning
from stokerd.residence import Residence
from stokerd.set_moves import SetMoves
from stokerd.set_requests import SetRequests
from stokerd.shard_tasks import ShardTasks
from stokerd.source_book import SourceBook
from stokerd.source_outcomes import SourceOutcomes, paused
from stokerd.tokenizer_desk import TokenizerDesk
from stokerd.warm_yard import NoWarm, WarmYard
from stokerd.yard import TRIES_ONCE

PAUSABLE = ("stage", "build", "sync", "hydrate")


@dataclass
class ShardView:
    """Everything there is to look at; `receipts` and `listing` as they were last read."""

    once: bool
    limits: Limits
    crew: Crew
    patience: Patience
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
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    listing: Listing | None = None

    def situation(self) -> Situation:
        """What the schedule decides on."""
        shelved = self.outcomes.disputes(self.receipts)
        if self.once:
            shelved += [path for path in self.book.sources if self.patience.failures(path) >= TRIES_ONCE]
        wanted = self.tokenizer.choose(self.listing)
        situation = Situation(
            receipts=self.receipts,
            sources=self.book.sources,
            limits=self.limits,
            key_of=self.pinning.key_of(),
            published=frozenset(self.hot.published),
            busy=self.busy(),
            convicted=self.outcomes.convicted.keys(),
            invalid_sets=self.outcomes.invalid_sets.keys(),
            to_prove=self.requests.to_prove,
            wanted=wanted,
            shelved=frozenset(shelved),
            beyond=self.beyond(),
            not_before=self.patience.not_before,
            paused_until={each: self.patience.not_before.get(paused(each), 0.0) for each in PAUSABLE},
            room=self.space.schedule_room(wanted, self.residence.wants.cold_bytes),
        )
        return replace(
            situation, recallable=recallable(situation, self.shelves()), urgent=self.urgent(situation)
        )

    def urgent(self, situation: Situation) -> frozenset[str]:
        """The paths of sets that a run waits for and that have to be made again."""
        keys, key_of = self.residence.urgent(), situation.key_of
        if not keys or key_of is None:
            return frozenset()
        unmade = ((path, one) for path, one in situation.sources.items() if one.state not in TERMINAL)
        return frozenset(path for path, source in unmade if key_of(source.sha256) in keys)

    def shelves(self) -> Shelves:
        """What lies on warm, what is wanted back, and what warm has room for."""
        return Shelves(
            warm=frozenset(self.warm.published),
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
        known = self.receipts.keys() | self.book.sources.keys()
        part = self.pinning.slice(self.listing, self.book.sources, known)
        return frozenset() if part is None else part.beyond

    def busy(self) -> dict[str, str]:
        """The activity each path is in; one whose files are being removed from a disk is in it too."""
        busy = {path: each for path, each in self.crew.busy.items() if path in self.book.sources}
        clearing, key_of = self.hot.clearing | self.warm.clearing, self.pinning.key_of()
        for path, source in self.book.sources.items() if clearing else ():
            key = source.key if key_of is None else key_of(source.sha256)
            places = {self.tasks.parquet(source), self.tasks.building(str(key)), *self.tasks.moving(source)}
            if clearing & places:
                busy.setdefault(path, "sweep")
        return busy

    def doing(self, activity: str) -> list[str]:
        """The paths with which this is going on."""
        return [path for path, each in self.crew.busy.items() if each == activity]
