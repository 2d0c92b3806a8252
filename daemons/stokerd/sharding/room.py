"""Makes room on hot for work that waits for it, and reports where nothing can."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.decide import buildable, stageable
from stoker.corpus.schedule.state import Situation
from stoker.corpus.staging.disk_contents import parquet_name, partial_copy
from stokerd.sharding import placement
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Effect, StartOver


def make_room(dataset: DatasetState, situation: Situation) -> Iterator[Effect]:
    """Evicts or discards for work that waits for space, and reports where nothing can."""
    now, hot, sources = time.monotonic(), dataset.hot, dataset.sources
    needs, space, wants = dataset.needs, dataset.machine.space, dataset.placement.wants
    staging = [sources[path] for path in stageable(situation, now)[:1]]
    building = [sources[path] for path in buildable(situation, now)[:1]]
    stages = [(f"staging {one.path}", needs.stage(one)) for one in staging]
    outgrown = sum(needs.outgrown.get(one.path, 0) for one in building)
    needed = wants.cold_bytes + outgrown + sum(size for _, size in stages)
    yield from placement.evict_for(dataset, needed)
    is_stuck = dataset.machine.is_idle()
    first = building or [source for source in staging if source.path in situation.wanted]
    if is_stuck and (staging or building) and hot.is_measured and hot.partial:
        _discard_partial(dataset)
    elif is_stuck and first and hot.is_measured:
        yield from _unstage(dataset, first[0])
    waiting = [(f"building {one.path}", needs.build(one)) for one in building]
    if wants.cold_bytes and wants.is_blocked:
        why = f" ({dataset.placement.why})" if dataset.placement.why else ""
        waiting.append((f"bringing back shard sets that a run wants{why}", wants.cold_bytes))
    over = -(space.free(hot) or 0)
    waiting += stages + ([("what was claimed already", over)] if over > 0 else [])
    at_once = is_stuck and not dataset.machine.runs.is_consuming
    yield from space.say_short(hot, waiting, at_once=at_once)
    if dataset.warm is not None and dataset.warm.is_writable and not dataset.doing("sync"):
        first_sync = next(iter(sources.unsynced), None)
        size = 0 if first_sync is None else needs.estimate.published(sources[first_sync])
        is_short = size > (space.free(dataset.warm) or 0)
        copies = [("copying a shard set there", size)] if is_short else []
        yield from space.say_short(dataset.warm, copies, at_once=True)


def _discard_partial(dataset: DatasetState) -> None:
    """Discards unfinished copies: their space is needed first, and they can be made again."""
    paths = {parquet_name(source): source.path for source in dataset.sources.in_state("seen")}
    for name in dataset.hot.partial:
        dataset.hot.discard(partial_copy(dataset.pipeline.hot_layout, name), of=paths.get(name))
    dataset.hot.partial = {}


def _unstage(dataset: DatasetState, first: Source) -> Iterator[Effect]:
    """Discards one staged file, which is staged again later; a hard link would free no space."""
    keep = dataset.pinning.training_contents
    staged = [one for one in dataset.sources.in_state("staged") if one is not first]
    spare = [one for one in staged if one.sha256 not in keep]
    if spare and not dataset.needs.is_linked:
        source = max(spare, key=lambda one: one.path)
        dataset.discard_parquet(source)
        yield StartOver(source, f"{first.path} needs its space first")
