"""Compares the contents of the hot and the warm disk with the source records: pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.staging.disk_contents import Seen
from stoker.store.direct import PART
from stoker.store.layout import HotLayout, WarmLayout, record_name


def parquet_name(source: Source) -> str:
    """Returns the name of the source's file in hot's parquet directory."""
    return f"{record_name(source.dataset, source.path)}.parquet"


@dataclass(frozen=True)
class Findings:
    """The differences between a disk and the records."""

    renew: tuple[tuple[str, str], ...] = ()  # (path, reason) of sources to start over
    remove: tuple[str, ...] = ()  # files that no record needs there
    lost: tuple[str, ...] = ()  # paths whose set is on the other disk only
    parquet: tuple[tuple[str, str], ...] = ()  # (path of the source, file on hot to remove)
    # Paths whose only set this look did not see on warm. They start over when the next look does not see it
    # either: to build a set again is expensive, and one look may err.
    gone: frozenset[str] = frozenset()


def reconcile_hot(hot: HotLayout, seen: Seen, sources: Mapping[str, Source]) -> Findings:
    """Returns the records whose file or set is gone from hot, and the leftovers that no record needs.

    Files in the parquet directory that belong to no record stay: Stoker did not put them there. The evict
    worker reports on a set that is being evicted.
    """
    renew, lost, files = [], [], []
    remove = [*seen.temporaries, *_finished(hot, seen.trash, sources.values())]
    building = set()
    parquet, published = set(seen.parquet), set(seen.published)
    for path, source in sources.items():
        if source.hot and source.key is not None and source.key[:16] not in published:
            if source.on_warm:
                lost.append(path)
            else:
                renew.append((path, f"its shard set {source.key[:16]} is not on hot"))
        elif source.state in ("staged", "building") and parquet_name(source) not in parquet:
            if source.key is None or source.key[:16] not in published:
                renew.append((path, "its parquet file is not on hot"))
        elif parquet and source.state in ("quarantined", "duplicate", "released"):
            files += [(path, str(hot.parquet / name)) for name in (parquet_name(source),) if name in parquet]
        if source.state == "building" and source.key is not None:
            building.add(source.key[:16])
    remove += [
        str(hot.building / name) for name in seen.building if name.removesuffix(".lock") not in building
    ]
    remove += _not_going_on(hot, seen, sources)
    return Findings(tuple(renew), tuple(remove), tuple(lost), tuple(files))


def _not_going_on(hot: HotLayout, seen: Seen, sources: Mapping[str, Source]) -> list[str]:
    """Returns the partial copies of files that are no longer to be staged."""
    if not seen.partial:
        return []
    wanted = {parquet_name(source) for source in sources.values() if source.state == "seen"}
    return [partial_copy(hot, name) for name in seen.partial if name not in wanted]


def partial_copy(hot: HotLayout, name: str) -> str:
    """Returns the path of the partial copy of a file in hot's parquet directory."""
    return str(hot.parquet / f"{PART}{name}")


def reconcile_warm(
    warm: WarmLayout, seen: Seen, sources: Mapping[str, Source], *, gone_before: Collection[str]
) -> Findings:
    """Returns the records whose copy is gone from warm, and the leftovers of interrupted copies."""
    published = set(seen.published)
    missing = {
        path: source
        for path, source in sources.items()
        if source.on_warm
        and source.state in PUBLISHED
        and not source.evicting
        and str(source.key)[:16] not in published
    }
    gone = frozenset(path for path, source in missing.items() if source.evicted)
    reason = "its shard set was on warm only, and is gone from there"
    return Findings(
        renew=tuple((path, reason) for path in sorted(gone & set(gone_before))),
        remove=(*seen.temporaries, *(str(warm.trash / name) for name in seen.trash)),
        lost=tuple(path for path, source in missing.items() if not source.evicted),
        gone=gone - set(gone_before),
    )


def _finished(hot: HotLayout, trash: Iterable[str], sources: Iterable[Source]) -> list[str]:
    """Returns the entries of hot's trash, except the sets whose eviction is not finished."""
    evicting = {str(source.key)[:16] for source in sources if source.evicting}
    return [str(hot.trash / name) for name in trash if name.split("-")[0] not in evicting]
