"""Free space on hot and warm, in bytes, beside what all daemons claim of them in the disk ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from stoker.config.units import format_bytes
from stoker.kit.daemon import DaemonContext
from stoker.observe.ledger import Claim, Place, Purpose, claimed_bytes, others_claims, room, write_claims
from stoker.observe.ledger import Disk as DiskSize
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.disk import Disk
from stokerd.sharding.effects import Alert, AlertOver, Effect

Claims = Mapping[Place, Mapping[Purpose, int]]
RECORDED_AFTER_S = 60.0  # of waiting while other work may still free space


class Space:
    """No space is granted while a disk's size is unknown. `short`: the work that waits for space, by disk."""

    def __init__(self, context: DaemonContext) -> None:
        self._layout = context.layout
        self.floor = context.pipeline.stage.free_floor
        self._target_free = context.pipeline.evict.target_free
        self._mine: list[Claim] = []
        self._written: list[Claim] | None = None
        self._others: tuple[Claim, ...] = ()
        self._short_since: dict[str, float] = {}
        self.short: dict[str, str] = {}

    def claim(self, disks: Iterable[Disk], claims: Iterable[Claims]) -> None:
        """Writes the claims of all datasets if they changed, and reads those of the other daemons."""
        self._mine = [
            Claim(disk.size.device, str(disk.root), purpose, size)
            for each in claims
            for disk in disks
            for purpose, size in each[disk.place].items()
            if disk.size is not None and size
        ]
        if self._mine != self._written:
            write_claims(self._layout, STAGE_SHARD, self._mine)
            self._written = self._mine
        self._others = others_claims(self._layout, STAGE_SHARD)

    def claimed(self, size: DiskSize) -> int:
        """Returns the bytes that all daemons claim of a disk."""
        return claimed_bytes((*self._mine, *self._others), size.device)

    def checkpoints(self, size: DiskSize) -> int:
        """Returns the bytes claimed for checkpoints, which go before all else."""
        return claimed_bytes(self._others, size.device, "checkpoints")

    def free(self, disk: Disk | None, floor_bytes: int = 0, purpose: Purpose | None = None) -> int | None:
        """Returns the unclaimed bytes of a disk, less a floor; None while the size is unknown."""
        if disk is None or disk.measure is None:
            return None
        return room(disk.measure, (*self._mine, *self._others), floor_bytes=floor_bytes, purpose=purpose)

    def wanted_free(self, hot: Disk, needed_bytes: int) -> int:
        """Returns the bytes of hot that evicting should leave free: the target, or need plus floor."""
        tenth = 0 if hot.size is None else hot.size.total_bytes // 10
        return max(tenth if self._target_free is None else self._target_free, self.floor + needed_bytes)

    def say_short(self, disk: Disk, needs: list[tuple[str, int]], *, at_once: bool) -> Iterator[Effect]:
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
            yield Alert("disk_short", place, fields={"place": place, "reason": reason, **figures})
