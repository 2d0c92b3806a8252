"""The audit of the state directory's records of a dataset: compares pin, listing, receipts and sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stoker.config.schema import Limit, Pipeline
from stoker.corpus.records.dataset import DatasetPin, read_pin, slice_of
from stoker.corpus.records.receipts import Listing, Receipt, read_receipts
from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source, read_sources
from stoker.shards.format.identity import BuildParameters, build_id, set_key
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, StokerError
from stoker.store.layout import StateLayout
from stoker.store.record import RecordDamaged, read_record


@dataclass(frozen=True)
class Records:
    """All records of a dataset; two equal ones prove that no record changed between the readings."""

    sources: Mapping[str, Source] = field(default_factory=dict)
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    listing: Listing | None = None
    pin: DatasetPin | None = None
    problems: tuple[str, ...] = ()  # records that could not be read, as findings

    @cached_property
    def owners(self) -> Mapping[str | None, str]:
        """The first published source of each shard set's key."""
        owners: dict[str | None, str] = {}
        for source in self.sources.values():
            if source.state in PUBLISHED:
                owners.setdefault(source.key, source.path)
        return owners

    @cached_property
    def originals(self) -> frozenset[str]:
        """The contents (sha256) of every source that is not another source's duplicate."""
        return frozenset(one.sha256 for one in self.sources.values() if one.state != "duplicate")

    @classmethod
    def read(cls, layout: StateLayout, dataset: str) -> Records:
        """Reads every record of the dataset; moves no damaged record aside."""
        problems: list[str] = []

        def damaged(_: Path, error: RecordDamaged) -> None:
            problems.append(str(error))

        sources: Mapping[str, Source] = {}
        receipts: Mapping[str, Receipt] = {}
        pin = listing = None
        try:
            sources = _without_cut_off(read_sources(layout, dataset, damaged))
            receipts = read_receipts(layout, dataset, damaged)
            pin = read_pin(layout, dataset)
        except DataError as error:
            problems.append(str(error))
        try:
            listing = Listing.from_record(read_record(layout.listing(dataset)))
        except FileNotFoundError:
            if pin is not None and pin.complete:
                problems.append(f"{layout.listing(dataset)}: missing, {layout.dataset(dataset)} is complete")
        except (RecordDamaged, KeyError, TypeError, ValueError) as error:
            problems.append(f"{layout.listing(dataset)}: {error}")
        return cls(sources, receipts, listing, pin, tuple(problems))


def _without_cut_off(sources: Mapping[str, Source]) -> Mapping[str, Source]:
    """Returns the sources without the records of changes that a crash cut off; the next start undoes them."""

    def is_cut_off(source: Source) -> bool:
        origin = sources.get(source.former or "")
        published = origin is not None and {origin.state, source.state} <= PUBLISHED
        return published and origin is not None and origin.sha256 == source.sha256

    return {path: source for path, source in sources.items() if not is_cut_off(source)}


def record_findings(pipeline: Pipeline, records: Records, *, deep: bool) -> Iterator[str]:
    """Yields contradictions between pin, listing, record directories and the pipeline file."""
    layout, dataset, pin = pipeline.layout, pipeline.dataset.name, records.pin
    yield from _rotten(pipeline, records)
    if pin is None:
        return
    yield from _pin_findings(layout, pin, deep)
    if pin.version != pipeline.dataset.version:
        said = f"{pipeline.file} says {pipeline.dataset.version}"
        yield f"{layout.dataset(dataset)}: version {pin.version}, {said}"
    if pin.complete:
        yield from _listing_findings(layout, pin, records)


def _rotten(pipeline: Pipeline, records: Records) -> Iterator[str]:
    for path, receipt in records.receipts.items():
        if receipt.rotten:
            says = f"its sha256 is {receipt.found[:16]}, its receipt says {receipt.sha256[:16]}"
            take = f"or take it as it is: stoker verify downloads {pipeline.file} --accept {path}"
            same = "while size, time and inode are the same; put a good copy in its place"
            yield f"{receipt.file}: rotten: {says}, {same}, {take}"


def _pin_findings(layout: StateLayout, pin: DatasetPin, deep: bool) -> Iterator[str]:
    """Yields contradictions between the pin, its own parameters and the tokenizer file."""
    where = layout.dataset(pin.dataset)
    try:
        if build_id(BuildParameters.from_mapping(pin.build)) != pin.build_id:
            yield f"{where}: build_id {pin.build_id[:16]} is not that of its parameters"
        file = layout.datasets / pin.tokenizer.file
        if hash_file(file, past_cache=deep).sha256 != pin.tokenizer.sha256:
            yield f"{file}: its sha256 is not the pinned {pin.tokenizer.sha256[:16]}"
    except (StokerError, FileNotFoundError) as error:
        yield f"{where}: {error}"


def source_findings(source: Source, records: Records, *, warm: bool) -> Iterator[str]:
    """Yields contradictions between one source's record, its receipt, the other records and the pin."""
    receipt = records.receipts.get(source.path)
    if receipt is None:
        if source.has_file:
            yield f"{source.path} has no receipt"
    elif (
        source.state in TERMINAL and not source.never_came and (receipt.usable or receipt.state == "released")
    ):
        if receipt.sha256[:16] != source.sha256[:16]:
            yield f"{source.path}: sha256 is {source.sha256[:16]}, its receipt says {receipt.sha256[:16]}"
        if receipt.size != source.size:
            yield f"{source.path}: size is {source.size}, its receipt says {receipt.size}"
    if source.state == "quarantined" and not source.reason:
        yield f"{source.path} is quarantined without a reason"
    if source.state == "duplicate" and source.sha256 not in records.originals:
        yield f"{source.path} is the duplicate of nothing: no other source has its content"
    if source.state in PUBLISHED:
        yield from _published_findings(source, records, warm)


def _published_findings(source: Source, records: Records, warm: bool) -> Iterator[str]:
    if records.pin is None:
        yield f"{source.path} is {source.state}, but {source.dataset} has no pin"
    elif source.key != set_key(source.sha256, records.pin.build_id):
        yield f"{source.path}: key {str(source.key)[:16]} is not that of its content and the pinned build"
    if (owner := records.owners.get(source.key, source.path)) != source.path:
        yield f"{source.path}: its shard set {source.key16} is that of {owner} too"
    if source.key is None or source.books is None:
        yield f"{source.path} is {source.state} without key or books"
    elif source.evicted:
        if not warm:
            yield f"{source.path}: evicted, but no warm store is configured that could hold its set"
        elif not source.on_warm:
            yield f"{source.path}: evicted, but no proven copy of its set is on record"
        if flaw := source.books.flaw():
            yield f"{source.path}: books: {flaw}"


def _listing_findings(layout: StateLayout, pin: DatasetPin, records: Records) -> Iterator[str]:
    """Yields violations: a complete pin lists every source of its slice, and each source is terminal."""
    where, sources = layout.dataset(pin.dataset), records.sources
    for path in pin.listing:
        state = sources[path].state if path in sources else "not on record"
        if state not in TERMINAL:
            yield f"{where}: complete, but {path} is {state}"
    for path in _due(pin, records):
        if path not in pin.listing:
            state = sources[path].state if path in sources else "not on record"
            yield f"{where}: complete, but its listing lacks {path}, which is {state}"


def _due(pin: DatasetPin, records: Records) -> list[str]:
    """Returns the paths that a complete pin must list: all terminal files, or the limit's slice."""
    sources = records.sources.items()
    # An import comes behind the listed files, is outside the limit, and may be only seconds old; the same
    # holds for a file's former content.
    ended = [path for path, source in sources if source.state in TERMINAL and source.has_file]
    if not pin.limit or records.listing is None:
        return ended
    kept = [path for path in pin.listing if path in ended]
    part = slice_of(records.listing.paths, records.sources, Limit(**pin.limit), kept=kept)
    return list(part.paths)
