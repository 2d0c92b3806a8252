"""Start of the loop: reads the records, and starts sources over where the configuration changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.record_dir import uncollected
from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source, former_name, read_sources
from stoker.kit.daemon import DaemonContext
from stokerd.sharding.activities.base import columns
from stokerd.sharding.effects import Effect, Forget, StartOver, Write, event
from stokerd.sharding.facts.pinning import Pinning
from stokerd.sharding.state import Records, State


def read_records(context: DaemonContext) -> Records:
    """Reads every source record of the dataset; sets a damaged record aside.

    Its facts are found again: the receipt names the file, the set on hot shows the build.
    """
    with uncollected():
        dataset = context.pipeline.dataset.name
        sources = Catalog(read_sources(context.layout, dataset, context.set_aside))
    return Records(context, sources, Pinning(context, sources))


def bring_in_line(state: State) -> Iterator[Effect]:
    """Brings the records in line with the configuration."""
    yield from _begin_new_version(state)
    yield from _restore_formers(state)
    yield from _release_for_other_columns(state)
    if state.warm is None:
        yield from _forget_copies(state)


def _begin_new_version(state: State) -> Iterator[Effect]:
    """Starts every source over when dataset.version was raised: the existing sets belong to another build."""
    pinning = state.records.pinning
    if pinning.earlier is None or pinning.pin is not None:
        return
    for source in list(state.sources.values()):
        if source.former is not None:  # a former content has no file to build from
            yield Forget(source)
        elif not source.never_came and (source.state in TERMINAL or source.state == "building"):
            state.discard_build(source)
            yield StartOver(replace(source, formers=()), "new dataset version")


def _restore_formers(state: State) -> Iterator[Effect]:
    """Brings the records of former contents in line with those of the files.

    A change interrupted between its two records is undone; a lost record of a former content is made
    again, and its shard set is found by its key.
    """
    sources = state.sources
    for former in [sources[path] for path in sources.formers]:
        origin = sources.get(str(former.former))
        if (
            origin is not None
            and {origin.state, former.state} <= PUBLISHED
            and origin.sha256 == former.sha256
        ):
            plain = Source(former.dataset, former.path, former.size, former.sha256, former=former.former)
            yield Write(replace(plain, state="duplicate", reason=f"same content as {origin.path}"))
    for source in [one for one in sources.values() if one.formers]:
        for sha256, size in source.formers:
            if not sources.with_content(sha256):
                lost = Source(source.dataset, source.path, size, sha256)
                yield Write(replace(lost, path=former_name(sources, lost), former=source.path))


def _release_for_other_columns(state: State) -> Iterator[Effect]:
    """Starts over sources quarantined for a column that the configuration no longer reads."""
    read = {state.pipeline.dataset.text_column, *columns(state.pipeline)}
    for source in state.sources.in_state("quarantined"):
        if source.column is not None and source.column not in read:
            yield StartOver(source, f"it was quarantined for column {source.column!r}, which is not read now")


def _forget_copies(state: State) -> Iterator[Effect]:
    """Drops the copies when warm is no longer configured: sets that were only there are made again."""
    copied = [source for source in state.sources.values() if source.on_warm]
    for source in copied:
        if source.evicted:
            yield StartOver(source, "its shard set was on warm only, and no warm is configured now")
        else:
            yield Write(source.moved("proven", on_warm=False, evicting=False))
    if copied:
        again = sum(source.evicted for source in copied)
        advice = f"{again} shard sets were there only and are built again; or set warm again"
        yield event("warm_forgotten", "warning", sets=len(copied), message=advice)
