"""The stage-shard loop's part of the disk ledger: what it claims, and what there is room for, in bytes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from stoker.config.units import format_bytes
from stoker.corpus.records.index import KEY16
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import buildable, stageable
from stoker.corpus.schedule.growth import AGAIN, Growth
from stoker.corpus.schedule.moves import unsynced
from stoker.corpus.schedule.state import Room, Situation
from stoker.corpus.staging.reconcile import parquet_name, partial_of
from stoker.corpus.staging.size_estimate import Estimate, Workload, amount_bytes, claims_of, ratio_of
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, Purpose, claimed_bytes, others_claims, room, write_claims
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.layout import DAEMONS, STAGE_SHARD
from stokerd.sharding.effects import Alert, AlertOver, Effect, StartOver
from stokerd.sharding.facts.disks import Disk

if TYPE_CHECKING:
    from stokerd.sharding.state import State

KEPT_REACHED = 1000
RECORDED_AFTER_S = 60.0  # of waiting while something goes on that may make room


@dataclass(frozen=True)
class Held:
    """A content whose build was set back, and the bytes that its set needed by then."""

    sha256: str
    needed: int


class Space:
    """Room on hot and warm; none is given out while a disk's size is not known. `short` and `warm_short` say
    what waits for room, `held` which builds were set back, by path."""

    def __init__(self, context: DaemonContext) -> None:
        pipeline = context.pipeline
        self._layout = context.layout
        self.floor = pipeline.stage.free_floor
        self._target_free = pipeline.evict.target_free
        self._lands_on_hot = pipeline.dataset.source.kind != "folder" and pipeline.warm is None
        self._keeps_parquet = pipeline.shard.release == "never"
        self._mine: list[Claim] = []
        self._written: list[Claim] | None = None
        self._others: tuple[Claim, ...] = ()
        self._others_seen: object = None
        self._short_since = 0.0
        self.granted: dict[str, int] = {}  # what builds may take of hot, by the source's path
        self._reached: dict[str, int] = {}  # tokens built by workers of this daemon, by the key's digits
        self.held: dict[str, Held] = {}
        self.estimate = Estimate(2, None)
        self.short = self.warm_short = ""

    def refresh(self, state: State) -> None:
        """Count what is claimed again, and make it durable if it changed."""
        pin, sums = state.records.pinning.pin, state.sources.sums
        token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
        self.estimate = Estimate(token_bytes, ratio_of(sums.measured, token_bytes))
        work = self._workload(state)
        self._mine = []
        for disk in state.disks:
            claims = (
                self.estimate.hot_claims(work) if disk.place == "hot" else self.estimate.warm_claims(work)
            )
            if disk.size is not None:
                self._mine += claims_of(disk.size.device, str(disk.root), claims)
        if self._mine != self._written:
            write_claims(self._layout, STAGE_SHARD, self._mine)
            self._written = self._mine
        written = self._others_written()
        if written != self._others_seen:
            self._others, self._others_seen = others_claims(self._layout, STAGE_SHARD), written

    def _others_written(self) -> object:
        """Changes when another daemon writes its claims."""
        found = []
        for daemon in DAEMONS:
            with contextlib.suppress(FileNotFoundError):
                about = self._layout.ledger(daemon).stat()
                found.append((daemon, about.st_ino, about.st_mtime_ns))
        return tuple(found)

    def _workload(self, state: State) -> Workload:
        sources = state.sources
        if len(self._reached) > KEPT_REACHED:
            self._reached.clear()  # of sets that are published by now, mostly; the next commit tells again
        for job in state.builds():
            if job.facts.tokens is not None:
                self._reached[str(sources[job.subject].key)[:KEY16]] = job.facts.tokens
        unbuilt = sources.in_state("staged", "building")
        building = {one.path for one in unbuilt if one.state == "building"}
        self.granted = {path: size for path, size in self.granted.items() if path in building}
        staging = [sources[path] for path in state.doing("stage")]
        return Workload(
            staging=staging,
            unbuilt=unbuilt,
            hydrating=[sources[path] for path in state.doing("hydrate")],
            syncing=[sources[path] for path in state.doing("sync")],
            committed={one.path: self._committed(state, one) for one in unbuilt},
            copied={one.path: self._copied(state, one) for one in staging},
            granted=self.granted,
            linked=state.is_linked,
            pinned=state.records.pinning.pin is not None,
        )

    def _committed(self, state: State, source: Source) -> int:
        """What is built of the source's set already."""
        key = str(source.key)[:KEY16]
        if key in self._reached:
            return self._reached[key] * self.estimate.token_bytes
        return state.hot.building_bytes.get(key, 0)

    @staticmethod
    def _copied(state: State, source: Source) -> int:
        """What of the source's file is on hot already, as seen when hot was last looked at."""
        return state.hot.partial.get(parquet_name(source), 0) if state.hot.partial else 0

    def _rest(self, state: State, source: Source) -> int:
        return self.estimate.rest(source, self._committed(state, source), self.granted.get(source.path, 0))

    # Builds that grow beyond what was expected

    def grant(self, state: State, source: Source) -> int:
        """What the build of a source may take of hot: what it was granted, else what is expected of it."""
        expected = max(self.estimate.built(source), self._committed(state, source))
        return self.granted.setdefault(source.path, expected)

    def forget_build(self, source: Source) -> None:
        """What was built of the source's set is gone, and nothing is granted to it any more."""
        self.granted.pop(source.path, None)
        self._reached.pop(str(source.key)[:KEY16], None)

    def growth(self, state: State, source: Source, *, written: int, needed: int) -> Growth | None:
        """What decides whether a build may take `needed` bytes; None while hot's size is not known."""
        size = _known(state.hot)
        if size is None:
            return None
        is_linked, rest = self._lands_on_hot and state.is_linked, self._rest(state, source)
        purpose: Purpose | None = "sets" if is_linked else None
        # Downloads keep hot full to the floor, and sets are built in it: then half of it is kept.
        floor = self.floor // 2 if is_linked else self.floor
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
            room=rest + room(size, (*self._mine, *self._others), floor_bytes=floor, purpose=purpose),
            floor_room=size.free_bytes - checkpoints - self._begun(state, but=source.path),
            most=size.total_bytes - self.floor - checkpoints - stays,
        )

    # Room

    def free(self, state: State, floor_bytes: int = 0, purpose: Purpose | None = None) -> int | None:
        """Bytes of hot that nothing claims, less a floor; None while that is not known."""
        size = _known(state.hot)
        claims = (*self._mine, *self._others)
        return None if size is None else room(size, claims, floor_bytes=floor_bytes, purpose=purpose)

    def for_syncs(self, state: State) -> int | None:
        """Room on warm."""
        size = None if state.warm is None else _known(state.warm)
        return None if size is None else room(size, (*self._mine, *self._others))

    def schedule_room(self, state: State, wanted: frozenset[str], cold_bytes: int) -> Room:
        """What staging and building may take; `cold_bytes` of sets that are waited for come first.

        `wanted` are paths the tokenizer waits for: their sets are built when their files are all here. Where
        downloads land on hot and are staged by links, those take no room themselves, and sets come before
        what is still to land.
        """
        is_linked = self._lands_on_hot and state.is_linked
        free = self.free(state, purpose="sets") if is_linked else self.free(state, self.floor)
        is_unmeasured = self.estimate.ratio is None
        is_on_its_way = bool(state.sources.count("staged", "building") or state.doing("stage"))
        return Room(
            stage=None if free is None else free - cold_bytes,
            build=self._for_builds(state),
            stage_needs=lambda one: self.stage_needs(state, one, with_set=one.path not in wanted),
            build_needs=lambda one: self._rest(state, one),
            one_build=is_unmeasured and not state.doing("build"),
            one_stage=is_linked and is_unmeasured and not is_on_its_way,
        )

    def stage_needs(self, state: State, source: Source, *, with_set: bool = True) -> int:
        """Bytes that staging a source takes, with the set that is built of it."""
        copy = 0 if state.is_linked else max(0, source.size - self._copied(state, source))
        return copy + (self.estimate.built(source) if with_set else 0)

    def _for_builds(self, state: State) -> int | None:
        """Room for going on to build: into the floor if need be, or what is staged could never leave."""
        size = _known(state.hot)
        if size is None:
            return None
        return size.free_bytes - claimed_bytes(self._others, size.device, "checkpoints") - self._begun(state)

    def _begun(self, state: State, but: str | None = None) -> int:
        """What the builds that go on will still write."""
        paths = (path for path in state.doing("build") if path != but)
        return sum(self._rest(state, state.sources[path]) for path in paths)

    def wanted_free(self, state: State, needed_bytes: int) -> int:
        """Bytes of hot that evicting should leave free: the target, or what is needed now above the floor."""
        tenth = 0 if state.hot.size is None else state.hot.size.total_bytes // 10
        return max(tenth if self._target_free is None else self._target_free, self.floor + needed_bytes)

    def claimed(self, disk: DiskSize) -> int:
        """What all daemons claim of a disk."""
        return claimed_bytes((*self._mine, *self._others), disk.device)

    # Making room, and saying what waits for it

    def make_room(self, state: State, situation: Situation) -> Iterator[Effect]:
        """Have sets leave hot for what waits for room, and say so where none can."""
        now, sources, placement = time.monotonic(), state.sources, state.placement
        staging = [sources[path] for path in stageable(situation, now)[:1]]
        building = [sources[path] for path in buildable(situation, now)[:1]]
        set_back = [(f"building {p}", again_bytes(one)) for p, one in islice(self.held.items(), 1)]
        cold = placement.wants.cold_bytes
        needed = cold + sum(self.stage_needs(state, one) for one in staging) + sum(n for _, n in set_back)
        yield from placement.make_room(state, needed)
        is_stuck = state.is_idle()
        first = building or [source for source in staging if source.path in situation.wanted]
        if is_stuck and (staging or building) and state.hot.is_measured and state.hot.partial:
            self._discard_partial(state)
        elif is_stuck and first and state.hot.is_measured:
            yield from self._unstage(state, first[0])
        needs = [(f"building {one.path}", self._rest(state, one)) for one in building]
        needs += [("bringing shard sets back", cold)] if cold and placement.wants.is_blocked else []
        needs += [(f"staging {one.path}", self.stage_needs(state, one)) for one in staging] + set_back
        yield from self._say_short(state, needs, is_stuck=is_stuck and not placement.is_consumed)
        yield from self._say_warm_full(state, [*islice(unsynced(sources), 1)])
        yield from placement.say_too_small(state)

    @staticmethod
    def _discard_partial(state: State) -> None:
        """Give up the copies that were begun: their room is needed first, and they can be made again."""
        paths = {parquet_name(source): source.path for source in state.sources.in_state("seen")}
        for name in state.hot.partial:
            for file in partial_of(state.pipeline.hot_layout, name):
                state.hot.discard(file, of=paths.get(name))
        state.hot.partial = {}

    @staticmethod
    def _unstage(state: State, first: Source) -> Iterator[Effect]:
        """Give back the room of one staged file, which comes back later; a hard link gives none."""
        keep = state.records.pinning.training_contents
        staged = [one for one in state.sources.in_state("staged") if one is not first]
        spare = [one for one in staged if one.sha256 not in keep]
        if spare and not state.is_linked:
            source = max(spare, key=lambda one: one.path)
            state.discard_parquet(source)
            yield StartOver(source, f"{first.path} needs its room first")

    def _say_short(self, state: State, needs: list[tuple[str, int]], *, is_stuck: bool) -> Iterator[Effect]:
        """An alert, with the numbers, of what waits for room on hot: at once if stuck, else after a while."""
        size = _known(state.hot)
        if size is None:
            return
        over = -(self.free(state) or 0)
        needs += [("what was claimed already", over)] if over > 0 else []
        if not needs:
            self.short, self._short_since = "", 0.0
            yield AlertOver("disk_short", tell="disk_enough", fields={"place": "hot"})
            return
        what, needed = needs[0]
        claimed, now = self.claimed(size), time.monotonic()
        self._short_since = self._short_since or now
        self.short = (
            f"{what} waits for room on hot: it takes {format_bytes(needed)}; {format_bytes(size.free_bytes)} "
            f"of {format_bytes(size.total_bytes)} are free, {format_bytes(claimed)} of that is claimed and "
            f"{format_bytes(self.floor)} stays free (stage.free_floor)"
        )
        if is_stuck or now - self._short_since > RECORDED_AFTER_S:
            figures = {"needed_bytes": needed, "free_bytes": size.free_bytes, "claimed_bytes": claimed}
            reason = f"{self.short}; free some space: it goes on by itself"
            about: Mapping[str, Any] = {"place": "hot", "reason": reason, **figures}
            yield Alert("disk_short", repeat=False, fields=about)

    def _say_warm_full(self, state: State, waiting: list[Source]) -> Iterator[Effect]:
        free = self.for_syncs(state)
        if free is None or state.warm is None or not state.warm.is_writable:
            return
        needed = sum(self.estimate.published(source) for source in waiting)
        if needed <= free:
            self.warm_short = ""
            yield AlertOver("warm_full", tell="warm_has_room")
        elif not state.doing("sync"):
            self.warm_short = (
                f"copying to {state.warm.root} waits for room: it takes {format_bytes(needed)}, "
                f"{format_bytes(free)} are unclaimed there"
            )
            reason = f"{self.warm_short}; free some space there: shard sets stay on hot until then"
            about = {"reason": reason, "needed_bytes": needed, "free_bytes": free}
            yield Alert("warm_full", level="error", fields=about)


def again_bytes(held: Held) -> int:
    """The room in which a build that was set back begins again."""
    return int(held.needed * AGAIN)


def _known(disk: Disk) -> DiskSize | None:
    return disk.measure if disk.is_known else None
