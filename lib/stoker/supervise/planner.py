"""Keeps the plan ahead of the trainer: what the sources offer, which sets need a proof, what is appended.

The decision itself is plan.growth's. Sets are proven when an entry is about to name them, each once: what the
plan names already was proven when that was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.corpus.dataset import DatasetPin, read_pin
from stoker.corpus.listing import read_listing
from stoker.corpus.shelf import Shelf
from stoker.corpus.sources import PUBLISHED, Source
from stoker.plan import growth
from stoker.plan.growth import GrowthPolicy, PlanSource
from stoker.plan.log import Entry, Plan, PlanWriter, Segment
from stoker.plan.reconciliation import restore
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged
from stoker.supervise.gates import DataInView

RETRY_S = 60.0  # before a set that could not be proven is read once more


@dataclass(frozen=True)
class Outlook:
    """How far the run is and will go: windows of the plan before its newest position and its end."""

    consumed: int
    horizon: int


class Planner:
    """The plan of one run and what may enter it; touches the state directory only."""

    def __init__(self, layout: StateLayout, dataset: str, plan: Path) -> None:
        self._layout = layout
        self._dataset = dataset
        self._writer = PlanWriter(plan)
        self._shelf = Shelf(layout.sources, dataset, Source.from_record)
        self._proven: dict[str, str] = {}
        self._trust_the_plan()
        self._refused: dict[str, float] = {}  # key -> when it may be tried again
        self._waiting: Mapping[str, float] = {}
        self.why = ""

    @property
    def plan(self) -> Plan:
        return self._writer.plan

    def restore(self, copy: Plan) -> int:
        """Bring back entries that a proven checkpoint has and the log has lost; DataError at a fork."""
        lost = restore(self._writer, copy)
        self._trust_the_plan()
        return lost

    def pin(self) -> DatasetPin | None:
        """The dataset's pin, None before there is one, or while its owner has to make it anew."""
        try:
            return read_pin(self._layout, self._dataset)
        except RecordDamaged:
            return None

    def in_view(self, pin: DatasetPin | None) -> DataInView:
        """What is published now of the pin's listing; nothing before the dataset is pinned."""
        listed = frozenset() if pin is None else frozenset(pin.listing)
        published = {
            source.key: source
            for path, source in self._shelf.read().items()
            if source.state in PUBLISHED and source.key and path in listed
        }
        return DataInView(
            sets=len(published),
            train_tokens=sum(stream_tokens(source, "train") for source in published.values()),
            val_tokens=sum(stream_tokens(source, "val") for source in published.values()),
            complete=pin.complete if pin is not None else self._all_is_refused(),
        )

    def _all_is_refused(self) -> bool:
        """Whether every file there is has been quarantined, so that no pin will come."""
        listing, sources = read_listing(self._layout, self._dataset), self._shelf.read()
        if listing is None or not listing.complete or not listing.paths:
            return False
        return all(path in sources and sources[path].state == "quarantined" for path in listing.paths)

    def sets_with_heldout(self, pin: DatasetPin, wanted_tokens: int) -> dict[str, str]:
        """The first sets in listing order, key to manifest sha256, with val streams of so many tokens."""
        sources = self._shelf.read()
        found: dict[str, str] = {}
        tokens = 0
        for path in pin.listing:
            source = sources.get(path)
            if tokens >= wanted_tokens or source is None or source.state not in PUBLISHED:
                continue
            offered = stream_tokens(source, "val")
            if offered and source.key and source.manifest_sha256 and source.key not in found:
                found[source.key] = source.manifest_sha256
                tokens += offered
        return found

    def to_prove(self, pin: DatasetPin, outlook: Outlook, policy: GrowthPolicy, now: float) -> dict[str, str]:
        """The sets, key to manifest sha256, that the next entries would name and that are not proven yet."""
        hopeful = self._decide(pin, outlook, policy, now, trust=True)
        named = [pair for entry in hopeful.entries if isinstance(entry, Segment) for pair in entry.sets]
        return {key: digest for key, digest in named if key not in self._proven}

    def proven(self, key: str, manifest_sha256: str) -> None:
        """A proof of this set succeeded."""
        self._proven[key] = manifest_sha256
        self._refused.pop(key, None)

    def not_proven(self, key: str, now: float) -> None:
        """A proof of this set failed or could not be made: it stays out of the plan until tried again."""
        self._refused[key] = now + RETRY_S

    def grow(self, pin: DatasetPin, outlook: Outlook, policy: GrowthPolicy, now: float) -> tuple[Entry, ...]:
        """Append what is due of proven sets, durably, and return it."""
        with shared_lock(self._layout.shard_sets_lock):
            decision = self._decide(pin, outlook, policy, now, trust=False)
            for entry in decision.entries:
                self._writer.append(entry)
        self._waiting, self.why = decision.waiting, decision.why
        return decision.entries

    def _trust_the_plan(self) -> None:
        self._proven.update(pair for segment in self.plan.segments for pair in segment.sets)

    def _decide(
        self, pin: DatasetPin, outlook: Outlook, policy: GrowthPolicy, now: float, *, trust: bool
    ) -> growth.Growth:
        sources = self._shelf.read()
        return growth.decide(
            self.plan,
            [self._standing(path, sources.get(path), now, trust=trust) for path in pin.listing],
            complete=pin.complete,
            consumed=outlook.consumed,
            horizon=outlook.horizon,
            policy=policy,
            now=now,
            waiting=self._waiting,
        )

    def _standing(self, path: str, source: Source | None, now: float, *, trust: bool) -> PlanSource:
        if source is None:
            return PlanSource.of(path, None, None, None, 0)
        digest = self._proven.get(source.key or "")
        if digest is None and trust and self._refused.get(source.key or "", now) <= now:
            digest = source.manifest_sha256
        state = source.state if digest or source.state not in PUBLISHED else None
        return PlanSource.of(path, state, source.key, digest, stream_tokens(source, "train"))


def stream_tokens(source: Source, stream: str) -> int:
    """Tokens of a source's train or val stream by its books; 0 before it has any."""
    books: Mapping[str, Any] = source.books or {}
    return int(books.get(stream, {}).get("tokens", 0))


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold a lock file shared: an evictor, who takes it alone, waits for us, and we a moment for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
