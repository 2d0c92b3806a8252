"""What the stage-shard loop shows of the disks and of the sets on them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stoker.corpus.staging.size_estimate import amount_bytes
from stoker.kit.metrics import Metrics
from stokerd.sharding.disks import Yard
from stokerd.sharding.placement import Wants
from stokerd.sharding.source_store import SourceBook
from stokerd.sharding.space import DiskSpace
from stokerd.sharding.warm_disk import NoWarm, WarmYard

MOST_NAMED = 8  # of what is being brought back


class DiskBoard:
    """Keeps the gauges; the status' part comes from the same figures."""

    def __init__(
        self, metrics: Metrics, *, book: SourceBook, space: DiskSpace, hot: Yard, warm: WarmYard | NoWarm
    ) -> None:
        self._book, self._space = book, space
        self._disks = {"hot": hot, "warm": warm}
        self._sets = metrics.gauge(
            "shard_sets", "Shard sets on hot, with a proven copy on warm, and on warm only.", ("place",)
        )
        self._sets_bytes = metrics.gauge("shard_sets_bytes", "What those sets take.", ("place",))
        self._free = metrics.gauge("shard_disk_free_bytes", "Free space as last measured.", ("disk",))
        self._size = metrics.gauge("shard_disk_size_bytes", "Size of the file system.", ("disk",))
        self._claimed = metrics.gauge(
            "shard_disk_claimed_bytes", "What all daemons claim of the file system.", ("disk",)
        )
        self._up = metrics.gauge("shard_disk_up", "1 while the disk answers.", ("disk",))
        self._waiting = metrics.gauge("shard_syncs_waiting", "Sets without a proven copy on warm.")
        self._cold = metrics.gauge("shard_sets_wanted_cold", "Sets that a run waits for and are not on hot.")
        self._counted = -1
        self._figures: dict[str, dict[str, int]] = {}

    def show(self, wants: Wants, hydrating: Collection[str]) -> dict[str, Any]:
        """Set the gauges; returns `sets` and `disks` for the status."""
        self._count()
        for place, figures in self._figures.items():
            self._sets.labels(place).set(figures["sets"])
            self._sets_bytes.labels(place).set(figures["bytes"])
        waiting = self._waiting_syncs if self._disks["warm"].configured else 0
        self._waiting.set(waiting)
        self._cold.set(wants.cold)
        return {
            "sets": {
                **{place: figures["sets"] for place, figures in self._figures.items()},
                "waiting_for_sync": waiting,
                "wanted_cold": wants.cold,
                "bringing_back": sorted(hydrating)[:MOST_NAMED],
            },
            "disks": {name: self._disk(name) for name, disk in self._disks.items() if disk.configured},
            "waits_for_room": self._space.short,
        }

    def _count(self) -> None:
        if self._counted == self._book.changes:
            return
        self._counted = self._book.changes
        sums, token_bytes = self._book.sources.sums, self._space.estimate.token_bytes
        self._waiting_syncs = sums.unsynced
        self._figures = {
            place: {"sets": amount.sets, "bytes": amount_bytes(amount, token_bytes)}
            for place, amount in (("hot", sums.hot), ("warm", sums.warm), ("evicted", sums.evicted))
        }

    def _disk(self, name: str) -> dict[str, Any]:
        yard = self._disks[name]
        self._up.labels(name).set(1 if yard.known else 0)
        if yard.disk is None:
            return {"trouble": yard.trouble}
        claimed = self._space.claimed(yard.disk)
        self._free.labels(name).set(yard.disk.free_bytes)
        self._size.labels(name).set(yard.disk.total_bytes)
        self._claimed.labels(name).set(claimed)
        return {
            "total_bytes": yard.disk.total_bytes,
            "free_bytes": yard.disk.free_bytes,
            "claimed_bytes": claimed,
            "trouble": yard.trouble,
        }
