"""Keeps the plan ahead of the trainer: the offered sets, the sets that need a proof, the appended entries.

The rules are plan.growth's. A set is proven once, when an entry is about to name it; sets that the plan names
were proven when their entry was written. A set that has left hot since then is proven again before the
supervisor relies on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from stoker.corpus.records.dataset import DatasetPin, read_pin
from stoker.corpus.records.receipts import read_listing
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import PUBLISHED, Source, tokens_of
from stoker.plan import growth
from stoker.plan.growth import GrowthPolicy, PlanSource
from stoker.plan.log import Entry, Plan, PlanWriter, Segment, SetPair, read_plan, restore
from stoker.plan.positions import Position, Skip, left_after
from stoker.plan.residency import reach_from, reaching
from stoker.store.files import opened
from stoker.store.layout import RunLayout, StateLayout
from stoker.store.record import RecordDamaged, read_or_set_aside, write_record
from stoker.supervise.run.gates import DataInView

MOST_LATER = 512  # sets wanted from the plan beyond a launch's reach: more than a small disk holds
RETRY_S = 60.0  # before a set whose proof failed is read again


class Planner:
    """The plan of one run and the sets that may enter it; touches the state directory only.

    `wants` are the keys of sets that are needed on hot, most urgent first: those on warm that planned entries
    still read, then those that the next entries will name.
    """

    def __init__(self, layout: StateLayout, dataset: str, plan: Path, run_id: str | None = None) -> None:
        self._layout = layout
        self._dataset = dataset
        self._path = plan
        self._run_id = run_id
        self._writer = PlanWriter(plan, run_id)
        self.wants: tuple[str, ...] = ()
        self._named: tuple[SetPair, ...] = ()  # sets of the next entries
        self._hot: frozenset[str] = frozenset()
        self._arrived: dict[str, float] = {}  # key -> when first seen published, 0 at the start
        self._decided = False
        self._records = RecordDir(layout.sources, dataset, Source.from_record)
        self._proven: dict[str, str] = {}
        self._trust_the_plan()
        self._refused: dict[str, float] = {}  # key -> when its proof may be tried again
        self._clock = HoldClock(RunLayout(plan.parent).waiting, layout.quarantine)
        self.why = ""

    @property
    def plan(self) -> Plan:
        return self._writer.plan

    def belongs_to(self, run_id: str) -> None:
        """Sets the run's id; raises DataError when the existing plan belongs to another run."""
        if run_id != self._run_id:
            read_plan(self._path, run_id)
            self._run_id = run_id

    def restore(self, copy: Plan) -> int:
        """Restores entries that the log lost from a checkpoint's plan; DataError if the two differ."""
        lost = restore(self._writer, copy)
        self._trust_the_plan()
        return lost

    def pin(self) -> DatasetPin | None:
        """Returns the dataset's pin; None before its first record, or while that is damaged."""
        try:
            return read_pin(self._layout, self._dataset)
        except RecordDamaged:
            return None

    def in_view(self, pin: DatasetPin | None) -> DataInView:
        """Returns the published data of the pin's listing; nothing before the dataset is pinned.

        If every file is quarantined no pin will come.
        """
        sources = self.sources()
        if pin is not None:
            return in_view(pin, sources)
        listing = read_listing(self._layout, self._dataset)
        paths = listing.paths if listing is not None and listing.complete else ()
        is_over = all(path in sources and sources[path].state == "quarantined" for path in paths)
        return DataInView(0, 0, 0, complete=bool(paths) and is_over)

    def sets_with_heldout(self, pin: DatasetPin, wanted_tokens: int) -> dict[str, str]:
        """Returns the first listed sets, key to manifest sha256, whose val streams have so many tokens."""
        sources = self.sources()
        found: dict[str, str] = {}
        tokens = 0
        for path in pin.listing:
            source = sources.get(path)
            if tokens >= wanted_tokens or source is None or source.state not in PUBLISHED:
                continue
            offered = tokens_of(source.books, "val")
            if offered and source.key and source.manifest_sha256 and source.key not in found:
                found[source.key] = source.manifest_sha256
                tokens += offered
        return found

    def to_prove(self, now: float) -> dict[str, str]:
        """Returns the unproven sets of the next entries, key to manifest sha256.

        Sets on warm are left out, and named in `wants`. A set whose proof failed is included once its retry
        time is reached.
        """
        again = {key for key, due in self._refused.items() if due <= now}
        sources = self.sources().values() if again else ()
        known = ((one.key, one.manifest_sha256) for one in sources if one.key in again)
        return {
            key: digest
            for key, digest in (*known, *self._named)
            if key and digest and key not in self._proven and key in self._hot
        }

    def proven(self, key: str, manifest_sha256: str) -> None:
        self._proven[key] = manifest_sha256
        self._refused.pop(key, None)

    def not_proven(self, key: str, now: float, retry_s: float = RETRY_S) -> None:
        """Records a proof that failed or could not be made: the set is not used until a later proof."""
        self._proven.pop(key, None)
        self._refused[key] = now + retry_s

    def needed(
        self,
        position: Position,
        skips: Sequence[Skip] = (),
        segments: int | None = None,
        upto: Position | None = None,
    ) -> dict[str, str]:
        """Returns the planned sets, key to manifest sha256, that training on from a position reads.

        `segments` limits that to the next so many segments, `upto` to the entries before the one it begins.
        """
        read = (
            one
            for one in reaching(self.plan, position)
            if (upto is None or one.n < upto.entry) and _is_read(self.plan, one, position, skips)
        )
        return dict(pair for segment in islice(read, segments) for pair in segment.sets)

    def reach(self, position: Position, skips: Sequence[Skip], least_windows: int) -> Position | None:
        """Returns how far a launch can go with the sets on hot; see plan.residency.reach_from."""

        def is_hot(segment: Segment) -> bool:
            read = _is_read(self.plan, segment, position, skips)
            return not read or all(key in self._hot for key, _ in segment.sets)

        return reach_from(self.plan, position, is_hot, least_windows=least_windows, skips=skips)

    def cold(self, needed: Iterable[str]) -> list[str]:
        """Returns the keys that are not on hot to stay, read under the lock that excludes evictors."""
        with shared_lock(self._layout.shard_sets_lock):
            self.sources()
        return [key for key in needed if key not in self._hot]

    def unproven(self, needed: Mapping[str, str], now: float) -> dict[str, str]:
        """Returns the sets on hot that need a proof before use and whose proof may be tried now."""
        due = (key for key in needed if key not in self._proven and self._refused.get(key, now) <= now)
        return {key: needed[key] for key in due if key in self._hot}

    def trusted(self, needed: Iterable[str]) -> bool:
        """Whether all of them are proven and have stayed on hot since."""
        return all(key in self._proven for key in needed)

    def distrust(self, keys: Iterable[str]) -> None:
        """Requires a new proof of these sets: the trainer that reads them reports an error."""
        for key in keys:
            self._proven.pop(key, None)
            self._refused.pop(key, None)

    def note_wants(self, needed: Iterable[str], later: Iterable[str] = ()) -> None:
        """Sets `wants`: first the needed sets not on hot, then those planned for later."""
        cold = [key for key in needed if key not in self._hot]
        self.wants = tuple(
            dict.fromkeys((*cold, *islice(later, MOST_LATER), *(key for key, _ in self._named)))
        )

    def grow(self, pin: DatasetPin, target: int, policy: GrowthPolicy, now: float) -> tuple[Entry, ...]:
        """Appends the due entries of proven sets, durably, up to `target` windows; returns them."""
        with shared_lock(self._layout.shard_sets_lock):
            sources = self.sources()
            standings = [self._standing(path, sources.get(path), now) for path in pin.listing]
            self._decided = True
            decision = growth.decide(
                self.plan,
                standings,
                complete=pin.complete,
                whole=pin.whole,
                target=target,
                policy=replace(policy, run_id=self._run_id or "", dataset=self._dataset),
                now=now,
                waiting=self._clock.since(now),
            )
            for entry in decision.entries:
                self._writer.append(entry)
        self._clock.keep(decision.waiting, now, policy.hold_s)
        self.why, self._named = decision.why, decision.coming
        return decision.entries

    def sources(self) -> dict[str, Source]:
        """Returns the source records by path; drops the proofs of sets that left hot."""
        sources = self._records.read()
        if self._records.take_changed():
            self._hot = frozenset(source.key for source in sources.values() if source.key and source.hot)
            self._proven = {key: digest for key, digest in self._proven.items() if key in self._hot}
            # A set that comes back is another copy.
            self._refused = {key: due for key, due in self._refused.items() if key in self._hot}
        return sources

    def _trust_the_plan(self) -> None:
        self._proven.update(pair for segment in self.plan.segments for pair in segment.sets)

    def _standing(self, path: str, source: Source | None, now: float) -> PlanSource:
        if source is None:
            return PlanSource.of(path, None, None, None, 0)
        key, arrived = source.key or "", now
        if key and source.state in PUBLISHED:  # sets published at the start count as arrived together
            arrived = self._arrived.setdefault(key, now if self._decided else 0.0)
        return PlanSource.of(
            path,
            None if key in self._refused else source.state,
            key,
            self._proven.get(key) or source.manifest_sha256,
            tokens_of(source.books, "train"),
            hot=source.hot or source.state not in PUBLISHED,
            proven=key in self._proven,
            arrived=arrived,
        )


def _is_read(plan: Plan, segment: Segment, position: Position, skips: Sequence[Skip]) -> bool:
    """Whether the segment has an unskipped window beyond the position."""
    first = position if position.entry == segment.n else Position(segment.n, 0)
    behind = Position(segment.n, segment.windows)
    return left_after(plan, first, skips) > left_after(plan, behind, skips)


def in_view(pin: DatasetPin, sources: Mapping[str, Source]) -> DataInView:
    """Returns the published data of the pin's listing, by the records; each set counts once."""
    listed = (sources[path] for path in pin.listing if path in sources)
    published = {one.key: one.books for one in listed if one.state in PUBLISHED and one.key}
    train, val = (sum(tokens_of(books, split) for books in published.values()) for split in ("train", "val"))
    return DataInView(len(published), train, val, complete=pin.complete)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Holds a lock file shared; an evictor takes it exclusively, and each side waits for the other."""
    with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


EVERY_S = 10.0  # least time between two writes, and so the wait that a kill may forget
SHARE = 0.1  # of the hold, where that is less than EVERY_S


class HoldClock:
    """`plan.hold` as seconds waited, counted on the monotonic clock and kept in a record.

    Time without a running supervisor does not count: after a power cut of a day the plan passes over no file
    that the watchdog is about to fetch. Changes of the wall clock do not count either.
    """

    def __init__(self, file: Path, quarantine: Path) -> None:
        self._file = file
        body = read_or_set_aside(file, quarantine) or {}
        self._waited: dict[str, float] = body.get("waited_s", {})  # as on disk
        self._since: Mapping[str, float] | None = None
        self._due = 0.0

    def since(self, now: float) -> Mapping[str, float]:
        """Returns when the wait for each path began, in monotonic seconds, as if there had been no break."""
        if self._since is None:
            self._since = {path: now - waited for path, waited in self._waited.items()}
        return self._since

    def keep(self, since: Mapping[str, float], now: float, hold_s: float) -> None:
        """Records the present waits; no wait longer than the hold is kept."""
        self._since = since
        waited = {path: round(min(now - start, hold_s), 1) for path, start in since.items()}
        if waited != self._waited and now >= self._due:
            write_record(self._file, {"v": 1, "waited_s": waited})
            self._waited, self._due = waited, now + min(EVERY_S, SHARE * hold_s)
