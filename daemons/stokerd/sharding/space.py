"""The stage-shard loop's part of the disk ledger: what it claims, and what there is room for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stoker.config.units import format_bytes
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.growth import Growth
from stoker.corpus.schedule.state import Room
from stoker.corpus.staging.reconcile import parquet_name
from stoker.corpus.staging.size_estimate import Estimate, Workload, amount_bytes, claims_of, ratio_of
from stoker.kit.daemon import DaemonContext
from stoker.kit.workers.pool import WorkerPool
from stoker.observe.ledger import Claim, Disk, Purpose, claimed_bytes, others_claims, room, write_claims
from stoker.store.layout import DAEMONS, STAGE_SHARD
from stokerd.common.alerts import Told
from stokerd.sharding.disks import Yard
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.warm_disk import NoWarm, WarmYard

KEPT_REACHED = 1000
TOLD_AFTER_S = 60.0  # of waiting while something goes on that may make room


class DiskSpace:
    """Room on hot and warm, in bytes; none is given out while a disk's size is not known."""

    def __init__(
        self,
        context: DaemonContext,
        *,
        crew: WorkerPool[Any],
        book: SourceBook,
        pinning: Pinning,
        told: Told,
        hot: HotYard,
        warm: WarmYard | NoWarm,
    ) -> None:
        pipeline = context.pipeline
        self._context, self._layout = context, context.layout
        self._crew, self._book, self._pinning, self._told = crew, book, pinning, told
        self._hot, self._warm = hot, warm
        self._paths = (str(pipeline.hot), str(pipeline.warm))
        self._floor = pipeline.stage.free_floor
        self._target_free = pipeline.evict.target_free
        self._mine: list[Claim] = []
        self._written: list[Claim] | None = None
        self._others: tuple[Claim, ...] = ()
        self._others_seen: object = None
        self._counted: tuple[int, bool] | None = None
        self.estimate = Estimate(2, None)
        self._linked = False  # whether staging is by hard links, as the last one was
        self._lands_on_hot = pipeline.dataset.source.kind != "folder" and pipeline.warm is None
        self._short_since = 0.0
        self._keeps_parquet = pipeline.shard.release == "never"
        self._granted: dict[str, int] = {}  # what builds may take of hot, by the source's path
        self._reached: dict[str, int] = {}  # tokens built by this daemon's workers, by the key's first digits
        self.short = self.warm_short = ""  # what waits for room on hot, and on warm, with the numbers

    def refresh(self, *, linked: bool) -> None:
        """Count what is claimed anew, and make it durable if it changed."""
        self._linked = linked
        self._measure_ratio()
        work = self._workload()
        self._mine = []
        for yard, path, claimed in (
            (self._hot, self._paths[0], self.estimate.hot_claims(work)),
            (self._warm, self._paths[1], self.estimate.warm_claims(work)),
        ):
            if yard.disk is not None:
                self._mine += claims_of(yard.disk.device, path, claimed)
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

    def _measure_ratio(self) -> None:
        pin = self._pinning.pin
        counted = (self._book.changes, pin is None)
        if counted != self._counted:
            self._counted = counted
            token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
            self.estimate = Estimate(token_bytes, ratio_of(self._book.sources.sums.measured, token_bytes))

    def _workload(self) -> Workload:
        doing: dict[str, list[Source]] = {"stage": [], "hydrate": [], "sync": []}
        for path, activity in self._crew.busy.items():
            if activity in doing:
                doing[activity].append(self._book.sources[path])
        if len(self._reached) > KEPT_REACHED:
            self._reached.clear()  # of sets that are published by now, mostly; the next commit tells again
        unbuilt = self._book.sources.in_state("staged", "building")
        building = {one.path for one in unbuilt if one.state == "building"}
        self._granted = {path: size for path, size in self._granted.items() if path in building}
        return Workload(
            staging=doing["stage"],
            unbuilt=unbuilt,
            hydrating=doing["hydrate"],
            syncing=doing["sync"],
            committed={one.path: self._committed(one) for one in unbuilt},
            copied={one.path: self._copied(one) for one in doing["stage"]},
            granted=self._granted,
            linked=self._linked,
            pinned=self._pinning.pin is not None,
        )

    def _committed(self, source: Source) -> int:
        """What is built of the source's set already."""
        tokens = self._crew[source.path].facts.get("tokens") if source.path in self._crew else None
        key = str(source.key)[:16]
        if tokens is not None:
            self._reached[key] = int(tokens)
        if key in self._reached:
            return self._reached[key] * self.estimate.token_bytes
        return self._hot.building_bytes.get(key, 0)

    def _copied(self, source: Source) -> int:
        """What of the source's file is on hot already, as seen when hot was last looked at."""
        partial = self._hot.partial
        return partial.get(parquet_name(source), 0) if partial else 0

    def _rest(self, source: Source) -> int:
        return self.estimate.rest(source, self._committed(source), self._granted.get(source.path, 0))

    # Builds that grow beyond what was expected

    def granted(self, source: Source) -> int:
        """What the build of a source may take of hot: what it was granted, else what is expected of it."""
        expected = max(self.estimate.built(source), self._committed(source))
        return self._granted.setdefault(source.path, expected)

    def grant(self, source: Source, size: int) -> None:
        """Let a build take so many bytes of hot."""
        self._granted[source.path] = size

    def begins_anew(self, source: Source) -> None:
        """What was built of the source's set is gone, and nothing is granted to it any more."""
        self._granted.pop(source.path, None)
        self._reached.pop(str(source.key)[:16], None)

    def growth(self, source: Source, *, written: int, needed: int) -> Growth | None:
        """What decides whether a build may take `needed` bytes; None while hot's size is not known."""
        disk = self._known(self._hot)
        if disk is None:
            return None
        linked, rest = self._lands_on_hot and self._linked, self._rest(source)
        purpose: Purpose | None = "sets" if linked else None
        # Downloads keep hot full to the floor, and sets are built in it: then half of it is kept.
        floor = self._floor // 2 if linked else self._floor
        checkpoints = claimed_bytes(self._others, disk.device, "checkpoints")
        sums = self._book.sources.sums
        stays = amount_bytes(sums.hot, self.estimate.token_bytes)
        if not self._linked:
            stays += source.size + (sums.measured.parquet_bytes if self._keeps_parquet else 0)
        return Growth(
            expected=self.estimate.built(source),
            claimed=self._granted.get(source.path, 0),
            written=written,
            needed=needed,
            room=rest + room(disk, (*self._mine, *self._others), floor_bytes=floor, purpose=purpose),
            floor_room=disk.free_bytes - checkpoints - self._begun(but=source.path),
            most=disk.total_bytes - self._floor - checkpoints - stays,
        )

    def free(self, floor_bytes: int = 0) -> int | None:
        """Bytes of hot that nobody claims, less a floor; None while that is not known."""
        disk = self._known(self._hot)
        return None if disk is None else room(disk, (*self._mine, *self._others), floor_bytes=floor_bytes)

    def schedule_room(self, wanted: frozenset[str], cold_bytes: int) -> Room:
        """What staging and building may take; `cold_bytes` of sets that are waited for come first.

        `wanted` are paths the tokenizer waits for: their sets are built when their files are all here.
        """
        free = self._for_links() if self._lands_on_hot and self._linked else self.free(self._floor)
        unmeasured = self.estimate.ratio is None
        return Room(
            stage=None if free is None else free - cold_bytes,
            build=self._for_builds(),
            stage_needs=lambda source: self.stage_needs(source, with_set=source.path not in wanted),
            build_needs=self._rest,
            one_build=unmeasured and not self._building(),
            one_stage=self._lands_on_hot and self._linked and unmeasured and not self._on_its_way(),
        )

    def _for_links(self) -> int | None:
        """Room for the sets of files that are staged from a landing on hot, which takes none itself.

        Downloads keep hot full to the floor: their files go once their sets are built, so sets come before.
        """
        disk = self._known(self._hot)
        return None if disk is None else room(disk, (*self._mine, *self._others), purpose="sets")

    def _on_its_way(self) -> bool:
        """Whether a file is staged or being staged."""
        return bool(self._book.sources.count("staged", "building")) or "stage" in self._crew.busy.values()

    def stage_needs(self, source: Source, *, with_set: bool = True) -> int:
        """Bytes that staging a source takes, with the set that is built of it."""
        copy = 0 if self._linked else max(0, source.size - self._copied(source))
        return copy + (self.estimate.built(source) if with_set else 0)

    def _for_builds(self) -> int | None:
        """Room for going on to build: into the floor if need be, or what is staged could never leave."""
        disk = self._known(self._hot)
        if disk is None:
            return None
        checkpoints = claimed_bytes(self._others, disk.device, "checkpoints")
        return disk.free_bytes - checkpoints - self._begun()

    def _begun(self, but: str | None = None) -> int:
        """What the builds that go on will still write."""
        return sum(self._rest(source) for source in self._building() if source.path != but)

    def _building(self) -> list[Source]:
        return [self._book.sources[path] for path, what in self._crew.busy.items() if what == "build"]

    def for_hydrations(self) -> int | None:
        """Room for bringing sets back."""
        return self.free(self._floor)

    def for_syncs(self) -> int | None:
        """Room on warm."""
        disk = self._known(self._warm)
        return None if disk is None else room(disk, (*self._mine, *self._others))

    def wanted_free(self, needed_bytes: int) -> int:
        """Bytes of hot that evicting should leave free: the target, or what is needed now above the floor."""
        disk = self._hot.disk
        tenth = 0 if disk is None else disk.total_bytes // 10
        target = tenth if self._target_free is None else self._target_free
        return max(target, self._floor + needed_bytes)

    def claimed(self, disk: Disk) -> int:
        """What all daemons claim of a disk."""
        return claimed_bytes((*self._mine, *self._others), disk.device)

    @staticmethod
    def _known(yard: Yard | NoWarm) -> Disk | None:
        return yard.disk if yard.known and yard.measured else None

    def tell_waiting(
        self,
        *,
        staging: list[Source],
        building: list[Source],
        set_back: Mapping[str, int],
        cold: int,
        stuck: bool,
    ) -> None:
        """Say once, with the numbers, what waits for room on hot: at once if `stuck`, else after a while.

        `cold` are bytes of sets to be brought back, `set_back` what builds begin again with, by path.
        """
        disk = self._known(self._hot)
        if disk is None:
            return
        needs = [(f"building {source.path}", self._rest(source)) for source in building]
        needs += [("bringing shard sets back", cold)] if cold else []
        needs += [(f"staging {source.path}", self.stage_needs(source)) for source in staging]
        needs += [(f"building {path}", size) for path, size in set_back.items()]
        over = -(self.free() or 0)
        needs += [("what was claimed already", over)] if over > 0 else []
        if not needs:
            self._enough()
            return
        what, needed = needs[0]
        claimed, now = self.claimed(disk), time.monotonic()
        self._short_since = self._short_since or now
        self.short = (
            f"{what} waits for room on hot: it takes {format_bytes(needed)}; {format_bytes(disk.free_bytes)} "
            f"of {format_bytes(disk.total_bytes)} are free, {format_bytes(claimed)} of that is claimed and "
            f"{format_bytes(self._floor)} stays free (stage.free_floor)"
        )
        if stuck or now - self._short_since > TOLD_AFTER_S:
            figures: dict[str, Any] = {
                "needed_bytes": needed,
                "free_bytes": disk.free_bytes,
                "claimed_bytes": claimed,
            }
            reason = f"{self.short}; free some space: it goes on by itself"
            self._told.trouble("disk_short", repeat=False, place="hot", reason=reason, **figures)

    def tell_warm_full(self, waiting: list[Source]) -> None:
        """Say that warm has no room for the copy that is waited for."""
        free = self.for_syncs()
        if free is None or not self._warm.writable:
            return
        needed = sum(self.estimate.published(source) for source in waiting)
        if needed <= free:
            self.warm_short = ""
            self._told.over("warm_full", tell="warm_has_room")
        elif "sync" not in self._crew.busy.values():
            self.warm_short = (
                f"copying to {self._paths[1]} waits for room: it takes {format_bytes(needed)}, "
                f"{format_bytes(free)} are unclaimed there"
            )
            reason = f"{self.warm_short}; free some space there: shard sets stay on hot until then"
            self._told.trouble(
                "warm_full", level="error", reason=reason, needed_bytes=needed, free_bytes=free
            )

    def _enough(self) -> None:
        self.short, self._short_since = "", 0.0
        self._told.over("disk_short", tell="disk_enough", place="hot")
