"""What lies on the hot disk: names only, as the stage-shard loop reconciles its records with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.store.layout import HotLayout


@dataclass(frozen=True)
class HotSeen:
    """One look at hot: file names in parquet/, folder names in .building/ and shards/<dataset>/.

    `temporaries` are paths that only an interrupted write can have left.
    """

    parquet: tuple[str, ...]
    building: tuple[str, ...]
    published: tuple[str, ...]
    temporaries: tuple[str, ...]


def look_at_hot(hot: HotLayout, dataset: str) -> HotSeen:
    """List the three places; one that is not there yet is empty. Raises OSError where one cannot be read."""
    parquet, left_parquet = _names(hot.parquet)
    published, left_published = _names(hot.shards(dataset))
    building, _ = _names(hot.building)
    return HotSeen(parquet, building, published, left_parquet + left_published)


def _names(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return (), ()
    return (
        tuple(name for name in names if not name.startswith(".")),
        tuple(str(folder / name) for name in names if name.startswith(".tmp-")),
    )
