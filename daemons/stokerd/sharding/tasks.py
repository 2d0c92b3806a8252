"""The tasks of the stage-shard loop's workers, as the configuration and the records make them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.records.pin import DatasetPin
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.staging.reconcile import parquet_name
from stoker.kit.workers.activity import Activity
from stoker.shards.format.identity import Filters
from stoker.store.files import TEMPORARY
from stoker.store.layout import WarmLayout
from stoker.store.names import new_id, record_name

READ_ROWS = 250  # the batch that read fastest and peaked lowest
ON_HOT = {"staged", "building", *PUBLISHED}
FLAW_FIELDS = ("reason", "row_group", "column", "detail")

# With neither a word nor CPU time; only for what writes to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0
_MOVE, _CLEAN = "stoker.shards.move.move_worker", "stoker.corpus.staging.cleanup_worker"
_PROVE = "stoker.shards.format.proof_worker"
ACTIVITIES = {
    each.kind: each
    for each in (
        Activity("stage", "stoker.corpus.staging.stage_worker", stall_s=STALL_S, is_reusable=True),
        Activity(
            "build",
            "stoker.shards.build.build_worker",
            stall_s=STALL_S,
            is_memory_bound=True,
            is_reusable=True,
        ),
        Activity("prove", _PROVE),
        Activity("quarantine", "stoker.corpus.quarantine.quarantine_worker"),
        Activity("release", _CLEAN, is_reusable=True),
        Activity("sweep", _CLEAN, is_reusable=True),
        Activity("drop", _CLEAN),
        Activity(
            "tokenizer", "stoker.shards.build.tokenizer_worker", silent_s=3600.0
        ),  # silent while it merges
        Activity("list", "stoker.corpus.staging.lister_worker", silent_s=60.0, keep_open=True),
        Activity("sync", _MOVE),
        Activity("evict", _MOVE),
        Activity("hydrate", _MOVE),
        Activity("recall", _PROVE),
        Activity("import", "stoker.shards.exchange.import_worker", keep_open=True),
        Activity("revalidate", "stoker.shards.audit.recheck_worker", is_memory_bound=True),
    )
}


class ShardTasks:
    """Makes tasks; holds nothing but the configuration."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._layout = pipeline.layout
        self._hot = pipeline.hot_layout
        filters = pipeline.dataset.filters
        self._columns = Filters.from_mapping(filters.model_dump()).columns()
        self.columns_read = frozenset((pipeline.dataset.text_column, *self._columns))

    def parquet(self, source: Source) -> str:
        """Where the source's file lies on hot."""
        return str(self._hot.parquet / parquet_name(source))

    def building(self, key: str) -> str:
        """Where the set of this key is being built."""
        return str(self._hot.building / key[:16])

    def look(self, place: str, root: Path, expected: int) -> dict[str, Any]:
        """Hold the owner lock of hot or warm, and list and measure it when asked."""
        return {
            "role": place,
            "root": str(root),
            "dataset": self._pipeline.dataset.name,
            "owner": self._pipeline.owner,
            "expected": expected,
        }

    def stage(self, source: Source, receipt: Receipt, *, decode: bool) -> dict[str, Any]:
        """Bring the source's file to hot."""
        return {
            "root": str(self._pipeline.source_root),
            "home": str(self._pipeline.source_home),
            "file": receipt.file,
            "size": source.size,
            "sha256": source.sha256,
            "target": self.parquet(source),
            "text_column": self._pipeline.dataset.text_column,
            "columns": list(self._columns),
            "floor": self._pipeline.stage.free_floor,
            "decode": decode,
        }

    def build(self, source: Source, pin: DatasetPin, xxh3: str) -> dict[str, Any]:
        """Make the source's shard set; after a death each row group is committed, to blame one.

        `xxh3` is that of the staged file, empty where it is not known.
        """
        assert source.key is not None
        commit = self._pipeline.shard.commit
        return {
            "parquet": self.parquet(source),
            "source": {"path": source.path, "size": source.size, "sha256": source.sha256, "xxh3": xxh3},
            "dataset": source.dataset,
            "key": source.key,
            "build_id": pin.build_id,
            "build": dict(pin.build),
            "tokenizer_file": str(self._layout.datasets / pin.tokenizer.file),
            "building": self.building(source.key),
            "target": str(self._hot.shard_set(source.dataset, source.key)),
            "read_rows": READ_ROWS,
            "commit": {"every_s": commit.every, "bytes": commit.bytes},
            "commit_every_row_group": bool(source.deaths),
            "engine": "tokenizers" if source.engine == "tokenizers" else self._pipeline.tokenizer.engine,
            "memory": self._pipeline.shard.memory.model_dump(),
        }

    def prove(self, source: Source, key: str) -> dict[str, Any]:
        """Prove the set that lies at the source's target."""
        return {"sets": [{"path": str(self._hot.shard_set(source.dataset, key)), "key": key}]}

    def sync(self, source: Source) -> dict[str, Any]:
        """Copy the source's set to warm."""
        hot, warm = self._places(source)
        return self._copy(source, hot, warm, self._warm.trash)

    def hydrate(self, source: Source) -> dict[str, Any]:
        """Bring the source's set back from warm."""
        hot, warm = self._places(source)
        return self._copy(source, warm, hot, self._hot.trash)

    def evict(self, source: Source) -> dict[str, Any]:
        """Take the source's set off hot."""
        hot, warm = self._places(source)
        return {"what": "evict", "hot": hot, "copy": warm, **self._identity(source, self._hot.trash)}

    def recall(self, source: Source, key: str) -> dict[str, Any]:
        """Prove the set on warm that has the source's key."""
        return {"sets": [{"path": str(self._warm.shard_set(source.dataset, key)), "key": key}]}

    def moving(self, source: Source) -> set[str]:
        """Every path that a move of the source's set, begun or broken off, may be at work on."""
        if source.key is None:
            return set()
        names = {str(self._hot.shard_set(source.dataset, source.key))}
        if self._pipeline.warm is not None:
            names.add(str(self._warm.shard_set(source.dataset, source.key)))
        return {name for each in names for name in (each, temporary_of(each))}

    def coming(self, source: Source) -> str:
        """Where the source's set lies on hot while it is being brought back."""
        return temporary_of(self._places(source)[0])

    def _places(self, source: Source) -> tuple[str, str]:
        assert source.key is not None  # it has a set
        sets = (layout.shard_set(source.dataset, source.key) for layout in (self._hot, self._warm))
        hot, warm = map(str, sets)
        return hot, warm

    def _copy(self, source: Source, here: str, there: str, trash: Path) -> dict[str, Any]:
        return {"what": "copy", "source": here, "target": there, **self._identity(source, trash)}

    @staticmethod
    def _identity(source: Source, trash: Path) -> dict[str, Any]:
        identity = {"key": source.key, "manifest_sha256": source.manifest_sha256}
        return {**identity, "trash": str(trash), "trash_id": new_id()}

    @property
    def _warm(self) -> WarmLayout:
        warm = self._pipeline.warm_layout
        assert warm is not None  # nothing is moved there where there is none
        return warm

    def quarantine(self, source: Source, finding: Mapping[str, Any]) -> dict[str, Any]:
        """Set the source's file on hot aside for the finding."""
        return self._aside("parquet", source, self.parquet(source), finding)

    def quarantine_set(self, source: Source, key: str, reason: str) -> dict[str, Any]:
        """Set a wrong shard set aside."""
        finding = {"reason": "set_invalid", "detail": reason, "key": key}
        return self._aside("shards", source, str(self._hot.shard_set(source.dataset, key)), finding)

    def _aside(self, kind: str, source: Source, thing: str, finding: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "directory": str(self._layout.quarantine),
            "kind": kind,
            "name": record_name(source.dataset, source.path),
            "thing": thing,
            "reason": {"path": source.path, "sha256": source.sha256, **finding},
            "budget_bytes": self._pipeline.quarantine.keep_bytes,
        }


def temporary_of(directory: str) -> str:
    """Where a copy of a set lies before it gets its name."""
    path = Path(directory)
    return str(path.with_name(f"{TEMPORARY}{path.name}"))
