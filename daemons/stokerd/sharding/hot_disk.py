"""The hot disk in the stage-shard loop's hands: the records are brought in line with what lies there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.config.disk import disk_faults
from stoker.config.load import refuse
from stoker.corpus.records.index import KeySet
from stoker.corpus.records.sources import Source
from stoker.corpus.staging.disk_contents import HotSeen
from stoker.corpus.staging.reconcile import parquet_name, partial_of, reconcile_hot
from stoker.store.errors import UnavailableError
from stoker.store.layout import HotLayout
from stokerd.sharding.disks import Yard
from stokerd.sharding.tasks import ON_HOT

NAMES = ("parquet", "building", "published", "temporaries", "trash")


class HotYard(Yard):
    """Hot: without it nothing is done."""

    place = "hot"
    _fits = False  # whether the disk is large enough for what the configuration asks of it
    building_bytes: Mapping[str, int] = {}  # what was built so far, by the first 16 digits of the key
    partial: Mapping[str, int] = {}  # what was copied so far of files on their way, by name, at the last look

    def hear(self, message: Mapping[str, Any]) -> None:
        """As any disk's; one that is mounted read-only is said, and with --once ends it all.

        Raises ConfigError where the disk is too small for the configuration, whatever is removed from it.
        """
        super().hear(message)
        if self.disk is not None and not self._fits:
            refuse(self._context.pipeline, disk_faults(self._context.pipeline, self.disk.total_bytes))
            self._fits = True  # when this daemon started; a disk that shrinks later is no reason to end
        if message["kind"] == "measured" and self.writable:
            self._told.over("hot_read_only", tell="hot_writable")
        elif message["kind"] == "measured":
            self._told.trouble("hot_read_only", level="error", reason=self.trouble)
            if self._context.once:
                raise UnavailableError(self.trouble)

    @property
    def known(self) -> bool:
        """Whether it can be worked on: on a read-only disk every file would fail in turn."""
        return super().known and self.writable

    @property
    def trouble(self) -> str:
        """Why nothing can be done now; empty when all is well."""
        if not self.writable and super().known:
            return f"the hot directory {self._root} is mounted read-only; remount it writable"
        return super().trouble

    def _expected(self) -> int:
        sources = self._book.sources.values()
        return sum(1 for source in sources if source.state in ON_HOT and not source.evicted)

    def _agree(self, message: Mapping[str, Any]) -> None:
        self.building_bytes = dict(message["building_bytes"])
        names = {name: tuple(message[name]) for name in NAMES}
        self.partial = dict(message["partial"])
        seen = HotSeen(**names, building_bytes=self.building_bytes, partial=self.partial)
        found = reconcile_hot(HotLayout(self._root), seen, self._untouched())
        for path in found.on_warm_only:
            self.gone(self._book.sources[path], "its shard set is not on hot")
        for path, reason in found.renew:
            source = self._book.sources[path]
            self.published.discard(str(source.key)[:16])
            self._book.renew(source, reason, level="warning")
            self._patience.succeeded(path)  # what it failed for was that
        self.published.drop(self._published_before - set(seen.published))
        if not self._agreed:  # later, what looks left over may just be in the making
            self.published = KeySet(seen.published)
            self.discard(*found.remove)
            for path, file in found.parquet:
                self.discard(file, of=path)
        self._told.over("list_failed", tell="list_succeeded")

    def _tell_unavailable(self, reason: str) -> None:
        self._told.trouble("list_failed", reason=reason)

    def gone(self, source: Source, reason: str) -> None:
        """The source's set is not on hot any more: what is left is its copy on warm, else it is made anew."""
        self.published.discard(str(source.key)[:16])
        if not source.on_warm:
            self._book.renew(source, reason, level="warning")
            return
        self._book.write(replace(source, evicted=True, evicting=False))
        self._context.events.record(
            "shard_set_lost",
            level="warning",
            path=source.path,
            key=str(source.key)[:16],
            reason=f"{reason}; its copy on warm is there",
        )

    def discard_partial(self) -> None:
        """Give up the copies that were begun: their room is needed first, and they can be made again."""
        paths = {parquet_name(source): source.path for source in self._book.sources.in_state("seen")}
        for name in self.partial:
            for file in partial_of(HotLayout(self._root), name):
                self.discard(file, of=paths.get(name))
        self.partial = {}

    def discard_build(self, source: Source) -> None:
        """Have removed what was begun of the source's shard set."""
        if source.key is not None:
            name = self._tasks.building(source.key)
            self.discard(name, f"{name}.lock")
