"""What the hot disk shows against what the source records claim, after a start: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.corpus.hot import HotSeen
from stoker.corpus.sources import PUBLISHED, Source
from stoker.store.layout import HotLayout
from stoker.store.names import record_name


def parquet_name(source: Source) -> str:
    """The name of the source's file in hot's parquet folder."""
    return f"{record_name(source.dataset, source.path)}.parquet"


@dataclass(frozen=True)
class Reconciliation:
    """Paths to start anew, each with the reason, and paths on hot to remove."""

    renew: tuple[tuple[str, str], ...]
    remove: tuple[str, ...]


def reconcile(hot: HotLayout, seen: HotSeen, sources: Mapping[str, Source]) -> Reconciliation:
    """Find the records whose file or set is gone, and the leftovers that no record needs any more.

    Files in the parquet folder that belong to no record are left alone: Stoker did not put them there.
    """
    renew = []
    remove = [*seen.temporaries]
    building = set()
    parquet, published = set(seen.parquet), set(seen.published)
    for path, source in sources.items():
        name = parquet_name(source)
        if source.state in PUBLISHED and source.key is not None and source.key[:16] not in published:
            renew.append((path, f"its shard set {source.key[:16]} is not on hot"))
        elif source.state in ("staged", "building") and name not in parquet:
            if source.key is None or source.key[:16] not in published:
                renew.append((path, "its parquet file is not on hot"))
        elif source.state in ("quarantined", "duplicate", "released") and name in parquet:
            remove.append(str(hot.parquet / name))
        if source.state == "building" and source.key is not None:
            building.add(source.key[:16])
    remove += [
        str(hot.building / name) for name in seen.building if name.removesuffix(".lock") not in building
    ]
    return Reconciliation(tuple(renew), tuple(remove))
