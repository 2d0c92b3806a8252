"""What the hot and the warm disk show against what the source records claim: pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.corpus.staging.disk_contents import Seen
from stoker.store.durable_copy import PART
from stoker.store.layout import HotLayout, WarmLayout
from stoker.store.names import record_name


def parquet_name(source: Source) -> str:
    """The name of the source's file in hot's parquet folder."""
    return f"{record_name(source.dataset, source.path)}.parquet"


@dataclass(frozen=True)
class Findings:
    """What a look at a disk says of the records: `lost` are the paths whose set is on the other disk only,
    `renew` those to start over, each with the reason, `remove` what no record needs there.

    `parquet` are files on hot to remove with the paths of their sources, (path, file). `gone` are the paths
    whose only set was not seen on warm this time: they start over when it is not seen the next time either,
    for making a set again is dear and one look may err.
    """

    renew: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    parquet: tuple[tuple[str, str], ...] = ()
    gone: frozenset[str] = frozenset()


def reconcile_hot(hot: HotLayout, seen: Seen, sources: Mapping[str, Source]) -> Findings:
    """Find the records whose file or set is gone, and the leftovers that no record needs any more.

    Files in the parquet folder that belong to no record are left alone: Stoker did not put them there. What
    becomes of a set that is being evicted its worker says.
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
    """Copies begun of files that are not to be brought (any more)."""
    if not seen.partial:
        return []
    wanted = {parquet_name(source) for source in sources.values() if source.state == "seen"}
    return [partial_copy(hot, name) for name in seen.partial if name not in wanted]


def partial_copy(hot: HotLayout, name: str) -> str:
    """Where a copy is made of a file in hot's parquet folder."""
    return str(hot.parquet / f"{PART}{name}")


def reconcile_warm(
    warm: WarmLayout, seen: Seen, sources: Mapping[str, Source], *, gone_before: Collection[str]
) -> Findings:
    """Find the records whose copy is gone, and what interrupted copies left."""
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
    """What lies in hot's trash, but for the sets whose eviction is still to be finished."""
    evicting = {str(source.key)[:16] for source in sources if source.evicting}
    return [str(hot.trash / name) for name in trash if name.split("-")[0] not in evicting]
