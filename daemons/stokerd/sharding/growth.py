"""Builds that outgrow their expected size: each asks for more of hot, and gets it or is set back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stoker.config.units import format_bytes
from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.sources import EXCEEDS_DISK, Source
from stoker.corpus.staging.disk_contents import AGAIN, FILES_BYTES, Growth, amount_bytes, decide_growth
from stoker.kit.workers.pool import Job
from stoker.observe.ledger import Disk as DiskSize
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Effect, Send, event
from stokerd.sharding.work import BuildWork


def answer_growth(dataset: DatasetState, claim_space: Callable[[], None]) -> Iterator[Effect]:
    """Answers builds that ask for space; a grant is in the ledger before its answer."""
    for job in dataset.jobs("build"):
        work: BuildWork = job.facts
        if work.asks is None or (size := dataset.hot.measure) is None:
            continue
        source = dataset.sources[job.subject]
        growth = _growth(dataset, source, *work.asks, size)
        granted = decide_growth(growth)
        if granted is None:
            work.refused = growth
        else:
            dataset.needs.granted[source.path] = granted
            claim_space()
        work.asks = None  # last: if the ledger cannot be written, the answer comes later
        yield Send(job.subject, {"room": 0 if granted is None else granted - FILES_BYTES})


def _growth(dataset: DatasetState, source: Source, written: int, needed: int, size: DiskSize) -> Growth:
    """Returns the facts that decide about a build's `needed` bytes."""
    needs, space, sums = dataset.needs, dataset.machine.space, dataset.sources.sums
    # Downloads fill hot down to the floor, and sets are built inside the floor: half of it stays free.
    if needs.is_inside_floor:
        free = space.free(dataset.hot, space.floor // 2, "sets")
    else:
        free = space.free(dataset.hot, space.floor)
    checkpoints = space.checkpoints(size)
    stays = amount_bytes(sums.hot, needs.estimate.token_bytes)
    if not needs.is_linked:
        keeps_parquet = dataset.limits.release == "never"
        stays += source.size + (sums.measured.parquet_bytes if keeps_parquet else 0)
    others = (path for path in dataset.doing("build") if path != source.path)
    return Growth(
        expected=needs.estimate.built(source),
        claimed=needs.granted.get(source.path, 0),
        written=written,
        needed=needed,
        room=needs.rest(source) + (free or 0),
        floor_room=size.free_bytes - checkpoints - needs.begun(others),
        most=size.total_bytes - space.floor - checkpoints - stays,
    )


def set_back(dataset: DatasetState, job: Job[BuildWork], source: Source) -> Iterator[Effect]:
    """Has a build that got no space begin again once there is more, or convicts a file too large for hot."""
    growth = job.facts.refused
    assert growth is not None  # set with the refusal that ended the build
    figures = {"needed_bytes": growth.needed, "expected_bytes": growth.expected}
    dataset.needs.set_back(source, None if growth.is_hopeless else int(growth.needed * AGAIN))
    if growth.is_hopeless:
        detail = (
            f"its shard set took {format_bytes(growth.needed)} and was not done, where "
            f"{format_bytes(growth.expected)} were expected; hot has {format_bytes(growth.most)} for it"
        )
        figures["room_bytes"] = growth.most
        finding = Finding(EXCEEDS_DISK, detail, job.facts.row_group, figures=figures)
        dataset.convicted[source.path] = finding
        return
    reason = (
        f"its shard set needs more than the {format_bytes(growth.limit)} it may have on hot now; "
        "it restarts once there is more space"
    )
    figures["room_bytes"] = growth.limit
    yield event("build_set_back", path=source.path, reason=reason, **figures)
