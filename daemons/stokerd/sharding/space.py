"""The stage-shard loop's part of the disk ledger: its claims, and the free space for its work, in bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import buildable, stageable
from stoker.corpus.schedule.state import Room, Situation
from stoker.corpus.staging.disk_contents import (
    Estimate,
    Growth,
    amount_bytes,
    parquet_name,
    partial_copy,
    ratio_of,
)
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, Place, Purpose, claimed_bytes, others_claims, room, write_claims
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.activities.disks import Disk
from stokerd.sharding.effects import Alert, AlertOver, Effect, StartOver

if TYPE_CHECKING:
    from stokerd.sharding.state import State

RECORDED_AFTER_S = 60.0  # of waiting while other work may still free space


class Space:
    """Free space on hot and warm; none is granted while a disk's size is unknown.

    `short`: the work that waits for space, by disk. `granted`: bytes of hot that a build may take, by source
    path. `outgrown`: bytes that a build needs to begin again after its output was discarded, by source path.
    """

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        self._layout = context.layout
        self.floor = pipeline.stage.free_floor
        self._target_free = pipeline.evict.target_free
        self._lands_on_hot = pipeline.dataset.source.spec.is_fetched and pipeline.warm is None
        self._keeps_parquet = pipeline.shard.release == "never"
        self._mine: list[Claim] = []
        self._written: list[Claim] | None = None
        self._others: tuple[Claim, ...] = ()
        self._short_since: dict[str, float] = {}
        self.granted: dict[str, int] = {}
        self.outgrown: dict[str, int] = {}
        self.estimate = Estimate(2, None)
        self.short: dict[str, str] = {}

    # What is claimed

    def refresh(self, state: State) -> None:
        """Recomputes the claims and writes them if they changed."""
        pin, sums = state.records.pinning.pin, state.sources.sums
        token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
        self.estimate = Estimate(token_bytes, ratio_of(sums.measured, token_bytes))
        claims = self._claims(state)
        self._mine = []
        for disk in state.disks:
            if disk.size is not None:
                place, mine = (disk.size.device, str(disk.root)), claims[disk.place].items()
                self._mine += [Claim(*place, purpose, size) for purpose, size in mine if size]
        if self._mine != self._written:
            write_claims(self._layout, STAGE_SHARD, self._mine)
            self._written = self._mine
        self._others = others_claims(self._layout, STAGE_SHARD)

    def _claims(self, state: State) -> dict[Place, dict[Purpose, int]]:
        """Returns the bytes begun work will still write. Without a tokenizer sets are built one at a time."""
        sources, estimate = state.sources, self.estimate
        for job in state.builds():
            if job.facts.tokens is not None:
                key = sources[job.subject].key16
                state.hot.building_bytes[key] = job.facts.tokens * estimate.token_bytes
        unbuilt = sources.in_state("staged", "building")
        building = {one.path for one in unbuilt if one.state == "building"}
        self.granted = {path: size for path, size in self.granted.items() if path in building}
        self.outgrown = {path: size for path, size in self.outgrown.items() if path in building}
        staging, hydrating, syncing = (
            [sources[path] for path in state.doing(kind)] for kind in ("stage", "hydrate", "sync")
        )
        rests = [self._rest(state, one) for one in unbuilt]
        sets = max(rests, default=0)
        if state.records.pinning.pin is not None:
            sets = sum(rests) + sum(map(estimate.built, staging))
        copies = sum(self.stage_needs(state, one, with_set=False) for one in staging)
        hot: dict[Purpose, int] = {"sets": sets + sum(map(estimate.published, hydrating)), "staging": copies}
        return {"hot": hot, "warm": {"sets": sum(map(estimate.published, syncing))}}

    def claimed(self, disk: DiskSize) -> int:
        """Returns the bytes that all daemons claim of a disk."""
        return claimed_bytes((*self._mine, *self._others), disk.device)

    # Builds that outgrow their expected size

    def grant(self, state: State, source: Source) -> int:
        """Returns the bytes of hot that a build may take: its grant, else its expected size."""
        expected = max(self.estimate.built(source), _committed(state, source))
        return self.granted.setdefault(source.path, self.outgrown.pop(source.path, expected))

    def set_back(self, state: State, source: Source, needed: int | None) -> None:
        """Withdraws the grant of a discarded build, which restarts once `needed` bytes are free."""
        self.granted.pop(source.path, None)
        state.hot.building_bytes.pop(source.key16, None)
        if needed is not None:
            self.outgrown[source.path] = needed

    def growth(self, state: State, source: Source, *, written: int, needed: int) -> Growth | None:
        """Returns the facts that decide about a build's `needed` bytes; None while hot's size is unknown."""
        size = state.hot.measure
        if size is None:
            return None
        is_linked = self._lands_on_hot and state.is_linked
        purpose: Purpose | None = "sets" if is_linked else None
        # Downloads fill hot down to the floor, and sets are built inside the floor: half of it stays free.
        free = self.free(state.hot, self.floor // 2 if is_linked else self.floor, purpose) or 0
        checkpoints = claimed_bytes(self._others, size.device, "checkpoints")
        sums = state.sources.sums
        stays = amount_bytes(sums.hot, self.estimate.token_bytes)
        if not state.is_linked:
            stays += source.size + (sums.measured.parquet_bytes if self._keeps_parquet else 0)
        return Growth(
            expected=self.estimate.built(source),
            claimed=self.granted.get(source.path, 0),
            written=written,
            needed=needed,
            room=self._rest(state, source) + free,
            floor_room=size.free_bytes - checkpoints - self._begun(state, but=source.path),
            most=size.total_bytes - self.floor - checkpoints - stays,
        )

    # Room

    def free(self, disk: Disk | None, floor_bytes: int = 0, purpose: Purpose | None = None) -> int | None:
        """Returns the unclaimed bytes of a disk, less a floor; None while the size is unknown."""
        if disk is None or disk.measure is None:
            return None
        return room(disk.measure, (*self._mine, *self._others), floor_bytes=floor_bytes, purpose=purpose)

    def rooms(self, state: State, wanted: frozenset[str], cold_bytes: int) -> dict[str, Room]:
        """Returns the space for staging, building and copying to warm, after `cold_bytes` for runs.

        `wanted` are the paths that the tokenizer waits for: their sets are built once all these files are
        staged. Where downloads land on hot, staging by hard links takes no space, and sets go before
        files still to land. Builds may use the floor: otherwise staged files could never leave hot.
        """
        is_linked, size = self._lands_on_hot and state.is_linked, state.hot.measure
        free = self.free(state.hot, purpose="sets") if is_linked else self.free(state.hot, self.floor)
        is_unmeasured = self.estimate.ratio is None
        is_on_its_way = bool(state.sources.count("staged", "building") or state.doing("stage"))
        checkpoints = 0 if size is None else claimed_bytes(self._others, size.device, "checkpoints")
        return {
            "stage": Room(
                None if free is None else free - cold_bytes,
                lambda one: self.stage_needs(state, one, with_set=one.path not in wanted),
                first_goes=is_linked and is_unmeasured and not is_on_its_way,
            ),
            "build": Room(
                None if size is None else size.free_bytes - checkpoints - self._begun(state),
                lambda one: self.build_needs(state, one),
                first_goes=is_unmeasured and not self.outgrown and not state.doing("build"),
            ),
            "sync": Room(self.free(state.warm), self.estimate.published),
        }

    def stage_needs(self, state: State, source: Source, *, with_set: bool = True) -> int:
        """Returns the bytes that staging a source takes, with the set that is built of it."""
        copy = 0 if state.is_linked else max(0, source.size - _copied(state, source))
        return copy + (self.estimate.built(source) if with_set else 0)

    def build_needs(self, state: State, source: Source) -> int:
        """Returns the bytes that a build still takes; a discarded build begins again above the floor."""
        outgrown = self.outgrown.get(source.path)
        return self._rest(state, source) if outgrown is None else outgrown + self.floor

    def _rest(self, state: State, source: Source) -> int:
        return self.estimate.rest(source, _committed(state, source), self.granted.get(source.path, 0))

    def _begun(self, state: State, but: str | None = None) -> int:
        """Returns the bytes that running builds will still write."""
        paths = (path for path in state.doing("build") if path != but)
        return sum(self._rest(state, state.sources[path]) for path in paths)

    def wanted_free(self, state: State, needed_bytes: int) -> int:
        """Returns the bytes of hot that evicting should leave free: the target, or need plus floor."""
        tenth = 0 if state.hot.size is None else state.hot.size.total_bytes // 10
        return max(tenth if self._target_free is None else self._target_free, self.floor + needed_bytes)

    # Making room, and reporting work that waits for it

    def make_room(self, state: State, situation: Situation) -> Iterator[Effect]:
        """Evicts or discards for work that waits for space, and reports where nothing can."""
        now, sources, placement = time.monotonic(), state.sources, state.placement
        cold = placement.wants.cold_bytes
        staging = [sources[path] for path in stageable(situation, now)[:1]]
        building = [sources[path] for path in buildable(situation, now)[:1]]
        stages = [(f"staging {one.path}", self.stage_needs(state, one)) for one in staging]
        outgrown = sum(self.outgrown.get(one.path, 0) for one in building)
        yield from placement.make_room(state, cold + outgrown + sum(size for _, size in stages))
        is_stuck = state.is_idle()
        first = building or [source for source in staging if source.path in situation.wanted]
        if is_stuck and (staging or building) and state.hot.is_measured and state.hot.partial:
            _discard_partial(state)
        elif is_stuck and first and state.hot.is_measured:
            yield from _unstage(state, first[0])
        needs = [(f"building {one.path}", self.build_needs(state, one)) for one in building]
        if cold and placement.wants.is_blocked:
            why = f" ({placement.why})" if placement.why else ""
            needs.append((f"bringing back shard sets that a run wants{why}", cold))
        over = -(self.free(state.hot) or 0)
        needs += stages + ([("what was claimed already", over)] if over > 0 else [])
        yield from self._say_short(state.hot, needs, at_once=is_stuck and not placement.is_consumed)
        if state.warm is not None and state.warm.is_writable and not state.doing("sync"):
            first_sync = next(iter(sources.unsynced), None)
            size = 0 if first_sync is None else self.estimate.published(sources[first_sync])
            is_short = size > (self.free(state.warm) or 0)
            copies = [("copying a shard set there", size)] if is_short else []
            yield from self._say_short(state.warm, copies, at_once=True)

    def _say_short(self, disk: Disk, needs: list[tuple[str, int]], *, at_once: bool) -> Iterator[Effect]:
        """Raises or clears the alert about work that waits for space on a disk, with the numbers."""
        size, place, now = disk.measure, disk.place, time.monotonic()
        if size is None:
            return
        if not needs:
            self.short.pop(place, None)
            self._short_since.pop(place, None)
            yield AlertOver("disk_short", place, tell="disk_enough", fields={"place": place})
            return
        (what, needed), claimed = needs[0], self.claimed(size)
        floor = f" and {format_bytes(self.floor)} stays free (stage.free_floor)" if place == "hot" else ""
        self.short[place] = (
            f"{what} waits for space on {place}: it takes {format_bytes(needed)}; "
            f"{format_bytes(size.free_bytes)} of {format_bytes(size.total_bytes)} are free, "
            f"{format_bytes(claimed)} of that is claimed{floor}"
        )
        since = self._short_since.setdefault(place, now)
        if at_once or now - since > RECORDED_AFTER_S:
            figures = {"needed_bytes": needed, "free_bytes": size.free_bytes, "claimed_bytes": claimed}
            reason = f"{self.short[place]}; free some space: it continues by itself"
            about: Mapping[str, Any] = {"place": place, "reason": reason, **figures}
            yield Alert("disk_short", place, fields=about)


def _committed(state: State, source: Source) -> int:
    """Returns the bytes already built of the source's set."""
    return state.hot.building_bytes.get(source.key16, 0)


def _copied(state: State, source: Source) -> int:
    """Returns the bytes of the source's file already copied to hot, as of the last look at hot."""
    return state.hot.partial.get(parquet_name(source), 0) if state.hot.partial else 0


def _discard_partial(state: State) -> None:
    """Discards unfinished copies: their space is needed first, and they can be made again."""
    paths = {parquet_name(source): source.path for source in state.sources.in_state("seen")}
    for name in state.hot.partial:
        state.hot.discard(partial_copy(state.pipeline.hot_layout, name), of=paths.get(name))
    state.hot.partial = {}


def _unstage(state: State, first: Source) -> Iterator[Effect]:
    """Discards one staged file, which is staged again later; a hard link would free no space."""
    keep = state.records.pinning.training_contents
    staged = [one for one in state.sources.in_state("staged") if one is not first]
    spare = [one for one in staged if one.sha256 not in keep]
    if spare and not state.is_linked:
        source = max(spare, key=lambda one: one.path)
        state.discard_parquet(source)
        yield StartOver(source, f"{first.path} needs its space first")
