"""Where a source's shard set lies by its record, on hot or on warm, and what is found there instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.config.schema import Pipeline
from stoker.corpus.records.sources import Source
from stoker.store.layout import HotLayout, WarmLayout


@dataclass(frozen=True)
class Places:
    """The two disks; `warm` is None where none is configured, or its disk is not there now."""

    dataset: str
    hot: HotLayout
    warm: WarmLayout | None

    @classmethod
    def of(cls, pipeline: Pipeline) -> Places:
        """Look whether warm is there: unmounted, it leaves an empty folder, and nothing is missing."""
        warm = pipeline.warm_layout
        try:
            there = warm is not None and warm.owner_lock.exists()
        except OSError:
            there = False
        return cls(pipeline.dataset.name, pipeline.hot_layout, warm if there else None)

    def of_set(self, source: Source) -> Path | None:
        """Where the set should be looked at; None for one on a warm disk that is not there now."""
        hot, copied = self._both(source)
        if source.evicted or (source.evicting and not hot.exists()):
            return copied
        return hot

    def findings(self, source: Source) -> Iterator[str]:
        """What lies where the record says it does not, and the other way round."""
        hot, copied = self._both(source)
        if source.evicted and not source.evicting and hot.exists():
            yield f"{hot}: here, the record of {source.path} says that it is on warm only"
        elif source.on_warm and not source.evicted and copied is not None and not copied.is_dir():
            yield f"{copied}: missing, the record of {source.path} says that its copy was proven"

    def _both(self, source: Source) -> tuple[Path, Path | None]:
        key = str(source.key)
        copied = None if self.warm is None else self.warm.shard_set(self.dataset, key)
        return self.hot.shard_set(self.dataset, key), copied
