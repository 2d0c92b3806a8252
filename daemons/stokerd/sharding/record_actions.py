"""Record changes that need no worker: at the start, and for the schedule's decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.receipts import Receipt
from stoker.corpus.records.sources import DOWNLOAD_FAILED, PUBLISHED, SOURCE_ROTTEN, TERMINAL, Source
from stoker.corpus.schedule.decide import demand_of
from stoker.corpus.schedule.state import Action, Situation
from stoker.shards.format.pinned import filters_asked
from stoker.store.layout import record_name
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.activities.moves import keep_hot
from stokerd.sharding.activities.quarantine import mark_released
from stokerd.sharding.dataset import DatasetState
from stokerd.sharding.effects import Effect, Forget, OpenFinding, SetDemand, StartOver, Write, event

LEAST_MISSED = 16  # named at once, to keep ahead of the builders as stage.queue_files does
NO_FILE = "its shard set is gone, and no file has this content any more"

_NOTHING_COMES = {
    DOWNLOAD_FAILED: "the event download_given_up says why it could not be fetched; it is tried again now "
    "and then",
    SOURCE_ROTTEN: "the event source_rotten says what the file has now; a good copy starts it over",
}


def take(dataset: DatasetState, action: Action) -> Iterator[Effect]:
    """Yields the effects of one action of the schedule."""
    path, source = action.path, dataset.sources.get(action.path)
    if action.kind in ACTIVITIES:
        yield from ACTIVITIES[action.kind].begin(dataset, path)
    elif action.kind == "give_up":
        yield from _give_up(dataset, dataset.receipts[path])
    elif action.kind == "restart" or source is None:
        yield from _restart(dataset, path)
    elif action.kind == "replace":
        yield from _keep_former(dataset, source)
        yield from _restart(dataset, path)
    elif action.kind == "release":  # a crash before the removal: the next start finds the file left over
        yield Write(source.moved("released"))
        dataset.discard_parquet(source)
        yield event("source_released", path=path)
    elif action.kind == "give_up_content":
        yield Write(source.moved("quarantined", reason="content_gone"))
        yield event("content_gone", path=path, reason=NO_FILE)
    elif action.kind == "duplicate":
        yield Write(source.moved("duplicate", reason=f"same content as {action.of}"))
        if source.state in ("staged", "building"):
            dataset.discard_parquet(source)
        dataset.discard_build(source)  # begun before the set's owner was known
        yield event("source_duplicate", path=path, of=action.of)
    elif action.kind == "keep_hot":
        yield from keep_hot(source, "the warm disk is away")


def _restart(dataset: DatasetState, path: str) -> Iterator[Effect]:
    source, receipt = dataset.sources.get(path), dataset.receipts[path]
    if source is None:
        yield Write(Source(dataset.name, path, receipt.size, receipt.sha256))
        return
    dataset.discard_build(source)
    dataset.convicted.pop(path, None)
    dataset.retries.succeeded(path)
    changed = source.sha256 != receipt.sha256
    reason = "its content changed" if changed else "the shard set of its content is gone"
    if source.never_came:
        reason = "its file came after all"
        for kept in dataset.machine.quarantine.kept:
            if kept.path == path and not kept.released:
                yield from mark_released(kept, reason)
    yield StartOver(source, reason, size=receipt.size, sha256=receipt.sha256)


def _keep_former(dataset: DatasetState, source: Source) -> Iterator[Effect]:
    """Keeps the proven set of a content that its file no longer has, in a record of its own.

    The new record is written first: after a crash here, the change is still visible and the same record is
    written again.
    """
    name = source.former_path
    yield Write(replace(source, path=name, former=source.path, formers=()))
    yield event(
        "source_changed_after_build",
        path=source.path,
        former=name,
        sha256=dataset.receipts[source.path].sha256,
        reason=f"its shard set stays, as that of {name}; the new content is built beside it. "
        "To have the new one alone raise dataset.version",
    )


def _give_up(dataset: DatasetState, receipt: Receipt) -> Iterator[Effect]:
    """Quarantines the source of a file that could not be fetched or is rotten; all other work continues.

    No file can be set aside: only the finding is written, for people to see and to release.
    """
    path = receipt.path
    source = dataset.sources.get(path) or Source(dataset.name, path, receipt.size, receipt.sha256)
    reason = SOURCE_ROTTEN if receipt.rotten else DOWNLOAD_FAILED
    yield Write(source.moved("quarantined", reason=reason, column=None))
    finding = Finding(reason, _NOTHING_COMES[reason])
    body = {"path": path, "sha256": source.sha256, **finding.fields()}
    yield OpenFinding(record_name(dataset.name, path), body)


def keep_demand(dataset: DatasetState, situation: Situation) -> Iterator[Effect]:
    """Writes the demand if it changed."""
    most_missed = max(LEAST_MISSED, dataset.pipeline.stage.queue_files)
    before, demand = dataset.demand, demand_of(situation, dataset.demandable, most_missed=most_missed)
    if demand == before:
        return
    yield SetDemand(dataset.name, demand)
    for path in sorted({*demand.missed} - {*before.missed}):
        reason = "its shard set is to be made again, and its file was removed after the last time"
        yield event("source_wanted_again", path=path, reason=reason)


# At the start


def bring_in_line(dataset: DatasetState) -> Iterator[Effect]:
    """Brings the records in line with the configuration."""
    yield from _begin_new_version(dataset)
    yield from _restore_formers(dataset)
    yield from _release_for_other_columns(dataset)
    if dataset.warm is None:
        yield from _forget_copies(dataset)


def _begin_new_version(dataset: DatasetState) -> Iterator[Effect]:
    """Starts every source over when dataset.version was raised: the existing sets belong to another build."""
    pinning = dataset.pinning
    if pinning.earlier is None or pinning.pin is not None:
        return
    for source in list(dataset.sources.values()):
        if source.former is not None:  # a former content has no file to build from
            yield Forget(source)
        elif not source.never_came and (source.state in TERMINAL or source.state == "building"):
            dataset.discard_build(source)
            yield StartOver(replace(source, formers=()), "new dataset version")


def _restore_formers(dataset: DatasetState) -> Iterator[Effect]:
    """Brings the records of former contents in line with those of the files.

    A change interrupted between its two records is undone; a lost record of a former content is made
    again, and its shard set is found by its key.
    """
    sources = dataset.sources
    for former in [sources[path] for path in sources.formers]:
        origin = sources.get(str(former.former))
        states = {former.state} if origin is None else {former.state, origin.state}
        if origin is not None and states <= PUBLISHED and origin.sha256 == former.sha256:
            plain = Source(former.dataset, former.path, former.size, former.sha256, former=former.former)
            yield Write(replace(plain, state="duplicate", reason=f"same content as {origin.path}"))
    for source in [one for one in sources.values() if one.formers]:
        for sha256, size in source.formers:
            if not sources.with_content(sha256):
                lost = Source(source.dataset, source.path, size, sha256)
                yield Write(replace(lost, path=lost.former_path, former=source.path))


def _release_for_other_columns(dataset: DatasetState) -> Iterator[Effect]:
    """Starts over sources quarantined for a column that the configuration no longer reads."""
    read = {dataset.pipeline.dataset.column, *filters_asked(dataset.pipeline).columns()}
    for source in dataset.sources.in_state("quarantined"):
        if source.column is not None and source.column not in read:
            yield StartOver(source, f"it was quarantined for column {source.column!r}, which is not read now")


def _forget_copies(dataset: DatasetState) -> Iterator[Effect]:
    """Drops the copies when warm is no longer configured: sets that were only there are made again."""
    copied = [source for source in dataset.sources.values() if source.on_warm]
    for source in copied:
        if source.evicted:
            yield StartOver(source, "its shard set was on warm only, and no warm is configured now")
        else:
            yield Write(source.moved("proven", on_warm=False, evicting=False))
    if copied:
        again = sum(source.evicted for source in copied)
        advice = f"{again} shard sets were there only and are built again; or set warm again"
        yield event("warm_forgotten", sets=len(copied), message=advice)
