"""What the schedule decides on: the facts of one dataset, as of now."""

from __future__ import annotations

from pathlib import PurePath

from stoker.corpus.records.sources import KEY16
from stoker.corpus.schedule.state import Limits, Room, Situation, WarmContents
from stoker.plan.residency import urgency
from stoker.store.files import TEMPORARY
from stokerd.sharding.activities.base import TRIES_ONCE
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.pauses import WRITES_TO


def situation_of(dataset: DatasetState) -> Situation:
    pinning, sources, retries = dataset.pinning, dataset.sources, dataset.retries
    wanted = pinning.choose_training()
    limits, alone, waiting = plan_builders(dataset)
    dataset.compare_touched()
    key_of = pinning.key_of()
    lost = {key[:KEY16] for key in urgency(dataset.machine.runs.holdings)}  # unless a set of the key exists
    urgent = [] if key_of is None else sources.open_with(lost, key_of)
    return Situation(
        receipts=dataset.receipts,
        sources=sources,
        limits=limits,
        key_of=key_of,
        published=dataset.hot.published,
        busy=busy(dataset),
        convicted=dataset.convicted.keys(),
        to_prove=dataset.to_prove.keys(),
        wanted=wanted,
        shelved=frozenset((*_left_alone(dataset, wanted), *waiting)),
        beyond=pinning.beyond,
        differing=dataset.differing,
        uncertain=dataset.warm is not None and not dataset.warm.is_known,
        not_before=retries.not_before,
        # Quarantine writes little: it goes on while the state directory's reserve is spent.
        paused_until={kind: dataset.pauses.until(kind) for kind in WRITES_TO if kind != "quarantine"},
        outgrown=dataset.needs.outgrown.keys(),
        rooms=rooms(dataset, wanted),
        urgent=frozenset((*urgent, alone) if alone is not None else urgent),
        warm=_warm_contents(dataset),
    )


def plan_builders(dataset: DatasetState) -> tuple[Limits, str | None, list[str]]:
    """Returns the limits that memory allows, the path to build alone now, and those that wait for that."""
    here = dataset.sources.in_state("staged", "building")
    ready = {one.path for one in here if dataset.retries.allows(one.path)}
    return dataset.machine.memory.plan(dataset.limits, dataset.doing("build"), ready)


def busy(dataset: DatasetState) -> dict[str, str]:
    """Returns the job kind by path; a path whose files are being removed from a disk is busy too."""
    found = {path: each for path, each in dataset.pool.busy.items() if path in dataset.sources}
    for disk in dataset.machine.disks:
        for place, of in disk.litter.items():
            for path in _using(dataset, place) if of is None else (of,):
                found.setdefault(path, "sweep")
    return found


def _using(dataset: DatasetState, place: str) -> list[str]:
    """Returns the paths that use a file or directory that is being removed from a disk."""
    named = PurePath(place)
    if named.parent.name == ".trash":
        return []
    # Named by a set's key: the set, an unfinished copy of it, a build and its lock.
    key = named.name.removeprefix(TEMPORARY).removesuffix(".lock")[:KEY16]
    sources, key_of = dataset.sources, dataset.pinning.key_of()
    owner = sources.of_key(key)
    paths = [] if owner is None else list(sources.with_content(sources[owner].sha256))
    return paths + ([] if key_of is None else sources.open_with({key}, key_of))


def _left_alone(dataset: DatasetState, wanted: frozenset[str]) -> list[str]:
    """Returns the paths that no work begins on now."""
    receipts, retries = dataset.receipts, dataset.retries
    paths = [path for path, one in dataset.disputed.items() if receipts.get(path) is one]
    if dataset.context.once:  # any failure may be waiting for its retry time
        paths += [path for path in retries.not_before if retries.failures(path) >= TRIES_ONCE]
    if dataset.only is not None:  # the tokenizer's files are staged even if the list omits them
        paths += (receipts.keys() | dataset.sources.keys()) - dataset.only - wanted
    return paths


def rooms(dataset: DatasetState, wanted: frozenset[str]) -> dict[str, Room]:
    """Returns the space for staging, building and copying to warm, after the sets that runs want back.

    `wanted` are the paths that the tokenizer waits for: their sets are built once all these files are staged.
    Where downloads land on hot, staging by hard links takes no space, and sets go before files still to land.
    Builds may use the floor: otherwise staged files could never leave hot.
    """
    hot, space, needs = dataset.hot, dataset.machine.space, dataset.needs
    is_linked, size, is_unmeasured = needs.is_inside_floor, hot.measure, needs.estimate.ratio is None
    free = space.free(hot, purpose="sets") if is_linked else space.free(hot, space.floor)
    is_on_its_way = bool(dataset.sources.count("staged", "building") or dataset.doing("stage"))
    return {
        "stage": Room(
            None if free is None else free - dataset.placement.wants.cold_bytes,
            lambda one: needs.stage(one, with_set=one.path not in wanted),
            first_goes=is_linked and is_unmeasured and not is_on_its_way,
        ),
        "build": Room(
            None
            if size is None
            else size.free_bytes - space.checkpoints(size) - needs.begun(dataset.doing("build")),
            needs.build,
            first_goes=is_unmeasured and not needs.outgrown and not dataset.doing("build"),
        ),
        "sync": Room(space.free(dataset.warm), needs.estimate.published),
    }


def _warm_contents(dataset: DatasetState) -> WarmContents:
    """Returns the sets on warm, those wanted back, and the free space there."""
    warm, wants = dataset.warm, dataset.placement.wants
    if warm is None:
        return WarmContents()
    return WarmContents(
        warm.published, warm.is_known, warm.is_writable, wants.hydrate, wants.wanted, dataset.rotten
    )
