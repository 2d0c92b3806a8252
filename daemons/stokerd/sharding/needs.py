"""The bytes that a dataset's work takes on hot and warm: before it begins, and what is left of begun work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.sources import Source
from stoker.corpus.staging.disk_contents import Estimate, parquet_name, ratio_of
from stoker.kit.workers.pool import Job
from stokerd.sharding.disk import Disk
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.space import Claims
from stokerd.sharding.work import BuildWork


class Needs:
    """`granted`: bytes of hot that a build may take, by source path. `outgrown`: bytes that a build needs to
    begin again after its output was discarded, by source path. `is_linked`: the last file was staged by a
    hard link, which takes no space."""

    def __init__(self, sources: Catalog, pinning: Pinning, hot: Disk, floor: int, lands_on_hot: bool) -> None:
        self._sources, self._pinning, self._hot, self._floor = sources, pinning, hot, floor
        self._lands_on_hot = self.is_linked = lands_on_hot  # until a hard link fails
        self.granted: dict[str, int] = {}
        self.outgrown: dict[str, int] = {}
        self.estimate = Estimate(2, None)

    def claims(self, builds: Iterable[Job[BuildWork]], doing: Callable[[str], Iterable[str]]) -> Claims:
        """Returns the bytes begun work will still write. Without a tokenizer sets are built one at a time."""
        sources, pin = self._sources, self._pinning.pin
        token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
        estimate = self.estimate = Estimate(token_bytes, ratio_of(sources.sums.measured, token_bytes))
        for job in builds:
            if job.facts.tokens is not None:
                self._hot.building_bytes[sources[job.subject].key16] = job.facts.tokens * token_bytes
        building = {one.path for one in sources.in_state("building")}
        self.granted = {path: size for path, size in self.granted.items() if path in building}
        self.outgrown = {path: size for path, size in self.outgrown.items() if path in building}
        staging, hydrating, syncing = (
            [sources[path] for path in doing(kind)] for kind in ("stage", "hydrate", "sync")
        )
        rests = [self.rest(one) for one in sources.in_state("staged", "building")]
        sets = max(rests, default=0)
        if pin is not None:
            sets = sum(rests) + sum(map(estimate.built, staging))
        copies = sum(self.stage(one, with_set=False) for one in staging)
        return {
            "hot": {"sets": sets + sum(map(estimate.published, hydrating)), "staging": copies},
            "warm": {"sets": sum(map(estimate.published, syncing))},
        }

    @property
    def is_inside_floor(self) -> bool:
        """Whether sets may take the floor: downloads fill hot down to the floor, and are linked there."""
        return self._lands_on_hot and self.is_linked

    def stage(self, source: Source, *, with_set: bool = True) -> int:
        """Returns the bytes that staging a source takes, with the set that is built of it."""
        copied = self._hot.partial.get(parquet_name(source), 0) if self._hot.partial else 0
        copy = 0 if self.is_linked else max(0, source.size - copied)
        return copy + (self.estimate.built(source) if with_set else 0)

    def build(self, source: Source) -> int:
        """Returns the bytes that a build still takes; a discarded build begins again above the floor."""
        outgrown = self.outgrown.get(source.path)
        return self.rest(source) if outgrown is None else outgrown + self._floor

    def rest(self, source: Source) -> int:
        """Returns the bytes that a begun build, or one of a staged file, will still write."""
        return self.estimate.rest(source, self._committed(source), self.granted.get(source.path, 0))

    def begun(self, building: Iterable[str]) -> int:
        """Returns the bytes that these running builds will still write."""
        return sum(self.rest(self._sources[path]) for path in building)

    def grant(self, source: Source) -> int:
        """Returns the bytes of hot that a build may take: its grant, else its expected size."""
        expected = max(self.estimate.built(source), self._committed(source))
        return self.granted.setdefault(source.path, self.outgrown.pop(source.path, expected))

    def set_back(self, source: Source, needed: int | None) -> None:
        """Withdraws the grant of a discarded build, which restarts once `needed` bytes are free."""
        self.granted.pop(source.path, None)
        self._hot.building_bytes.pop(source.key16, None)
        if needed is not None:
            self.outgrown[source.path] = needed

    def _committed(self, source: Source) -> int:
        """Returns the bytes already built of the source's set."""
        return self._hot.building_bytes.get(source.key16, 0)
