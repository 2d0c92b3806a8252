"""The dataset: its pin, the slice of the source that it takes, the files that its tokenizer is trained on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stoker.corpus.records.receipts import Listing
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.store.layout import StateLayout
from stoker.store.record import body_of, read_record, values_of, write_record

if TYPE_CHECKING:  # a worker that reads the pin needs no configuration
    from stoker.config.schema import Limit


@dataclass(frozen=True)
class TokenizerPin:
    """The frozen tokenizer."""

    file: str  # relative to the state's datasets directory
    sha256: str
    vocab_size: int
    eot: int  # the end-of-text id


@dataclass(frozen=True)
class DatasetPin:
    """One build of one dataset version; only the stage-shard loop writes it."""

    dataset: str
    version: int
    build_id: str
    build: Mapping[str, Any]  # every parameter that changes bytes
    tokenizer: TokenizerPin
    asked: Mapping[str, Any]  # the configuration's tokenizer settings
    # (path, sha256); None for a given tokenizer
    tokenizer_trained_on: tuple[tuple[str, str], ...] | None = None
    listing: tuple[str, ...] = ()  # the dataset's paths in training order
    # No more paths will be added, and the source of each is terminal: published, quarantined or a duplicate.
    complete: bool = False
    whole: bool = False  # the known files of the source include no further file that the limit would take
    limit: Mapping[str, int] = field(default_factory=dict)  # the configured limits of files, rows and tokens

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DatasetPin:
        """Parses a record; raises KeyError, TypeError or ValueError where a field is missing or wrong."""
        values, trained_on = values_of(cls, record), record["tokenizer_trained_on"]
        values["tokenizer"] = TokenizerPin(**record["tokenizer"])
        values["tokenizer_trained_on"] = trained_on and tuple((path, sha256) for path, sha256 in trained_on)
        values["listing"] = tuple(map(sys.intern, record["listing"]))
        values.setdefault("whole", record["complete"])
        return cls(**values)

    def to_record(self) -> dict[str, Any]:
        return body_of(self) | {"tokenizer": asdict(self.tokenizer)}


def read_pin(layout: StateLayout, dataset: str) -> DatasetPin | None:
    """Returns the dataset's pin, None where there is none; raises RecordDamaged where it is damaged."""
    try:
        return DatasetPin.from_record(read_record(layout.dataset(dataset)))
    except FileNotFoundError:
        return None


def write_pin(layout: StateLayout, pin: DatasetPin) -> None:
    """Writes the pin durably."""
    write_record(layout.dataset(pin.dataset), pin.to_record())


@dataclass(frozen=True)
class Slice:
    """A slice as far as it is known."""

    paths: tuple[str, ...]  # certainly in the slice, in listing order
    settled: bool  # no other known path can come in
    full: bool  # a limit of rows or tokens is reached: no file that appears later can change the slice
    beyond: frozenset[str]  # the listed paths that are left out
    stayed: tuple[str, ...]  # in the slice only because they were in it before


def slice_of(
    listed: Iterable[str], sources: Mapping[str, Source], limit: Limit, *, kept: Iterable[str] = ()
) -> Slice:
    """Returns the slice of the listed paths, as far as the sources in a terminal state settle it.

    `kept` are paths that were in the slice before and are in a terminal state: they stay, whatever the limit
    is now, because a plan may name them; they count like all paths.
    """
    kept = frozenset(kept)
    order = sorted({*listed, *kept})
    files = frozenset(order[: limit.files]) if limit.files else frozenset(order)
    owners = {one.sha256: one for one in sources.values() if one.state in PUBLISHED}
    counted: set[str] = set()
    paths: set[str] = set()
    stayed: list[str] = []
    rows = tokens = 0
    settled, full = True, False
    for path in order:
        if not settled or full or path not in files:
            if path not in kept:
                continue
            stayed.append(path)
        paths.add(path)
        source = sources.get(path)
        if source is not None and source.state == "quarantined":
            continue
        owner = None if source is None else owners.get(source.sha256)
        if owner is None:
            settled = settled and not (limit.rows or limit.tokens)  # a limit of files needs no counts
            continue
        paths.add(owner.path)  # training reads a content through the path that has its set, listed or not
        if owner.sha256 not in counted and owner.books is not None:
            rows += owner.books.rows or 0
            tokens += owner.books.train_tokens + owner.books.val_tokens
        counted.add(owner.sha256)
        full = bool(limit.rows and rows >= limit.rows) or bool(limit.tokens and tokens >= limit.tokens)
    # A file behind an open file may still come in, unless the limit of files excludes it.
    beyond = frozenset(order) - paths - (frozenset() if settled else files)
    return Slice(tuple(sorted(paths)), settled, settled and full, beyond, tuple(stayed))


@dataclass(frozen=True)
class TrainingSet:
    """The files that the tokenizer is trained on, as far as they are readable."""

    files: tuple[tuple[str, str], ...]  # readable, as (path, sha256) in listing order
    wanted: frozenset[str]  # the paths that are not readable yet
    ready: bool  # no path is wanted, and the files have enough bytes or the listing is complete


def choose_training_set(
    listing: Listing | None, sources: Mapping[str, Source], train_bytes: int
) -> TrainingSet:
    """Returns the files in listing order until their sizes reach train_bytes.

    A quarantined file is passed over. A content counts once and is readable under whichever path was staged.
    A file that is not readable yet keeps its place, so that the choice depends on the listing alone and not
    on the order of events.
    """
    if listing is None:
        return TrainingSet((), frozenset(), ready=False)
    readable = {source.sha256 for source in sources.values() if source.state not in ("seen", "quarantined")}
    files: list[tuple[str, str]] = []
    wanted: set[str] = set()
    contents: set[str] = set()
    total = 0
    for path, size in listing.files:
        if total >= train_bytes:
            break
        source = sources.get(path)
        if source is not None and (source.state == "quarantined" or source.sha256 in contents):
            continue
        total += size
        if source is not None and source.sha256 in readable:
            contents.add(source.sha256)
            files.append((path, source.sha256))
        else:
            wanted.add(path)
    enough = total >= train_bytes or listing.complete
    return TrainingSet(tuple(files), frozenset(wanted), ready=enough and bool(files) and not wanted)
