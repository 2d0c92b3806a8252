"""The dataset's pin: its tokenizer, its build id and its listing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.config.load import refuse
from stoker.config.schema import Limit
from stoker.corpus.records.dataset import (
    DatasetPin,
    Slice,
    TokenizerPin,
    TrainingSet,
    choose_training_set,
    read_pin,
    slice_of,
)
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Listing
from stoker.corpus.records.sources import PUBLISHED, TERMINAL
from stoker.kit.daemon import DaemonContext
from stoker.shards.format.identity import build_id, set_key
from stoker.shards.format.pinned import asked_of_tokenizer, parameters_asked, pin_faults
from stoker.store.record import RecordDamaged
from stokerd.sharding.effects import Effect, WritePin, event

STAYED = (
    "these were built before dataset.limit left them out; they stay, for a plan may name them. "
    "Another dataset.version starts over"
)


class Pinning:
    """The pin of the configured dataset version; `pin` is None until its tokenizer is frozen.

    `earlier` is the pin of a lower version, `training` the set of files to train the tokenizer on. Raises
    ConfigError when the configuration asks for another build than the pinned one.
    """

    def __init__(self, context: DaemonContext, sources: Catalog) -> None:
        self._sources = sources
        self.listing: Listing | None = None  # as last read
        pipeline = self._pipeline = context.pipeline
        self._layout = context.layout
        self._dataset, self._limit = pipeline.dataset.name, pipeline.dataset.limit
        self._is_lost = self._is_stay_recorded = False
        self._sliced: tuple[tuple[object, ...], Slice] | None = None  # the last slice, with its inputs
        self._kept: tuple[object, ...] = ()  # the inputs of the pin's listing
        self.earlier: DatasetPin | None = None
        self.training: TrainingSet | None = None
        self.pin = self._read(context)
        self.target = self._layout.tokenizer(self._dataset, pipeline.dataset.version)
        if self.pin is None:
            asked_of_tokenizer(pipeline)
        else:
            refuse(pipeline, pin_faults(pipeline, self.pin))

    def _read(self, context: DaemonContext) -> DatasetPin | None:
        try:
            pin = read_pin(self._layout, self._dataset)
        except RecordDamaged as error:
            context.set_aside(self._layout.dataset(self._dataset), error)
            self._is_lost = True
            return None
        if pin is not None and pin.version < self._pipeline.dataset.version:
            self.earlier = pin
            return None
        return pin

    def key_of(self) -> Callable[[str], str] | None:
        """Returns the function from a content's sha256 to its shard set's key, None without a pin."""
        return None if self.pin is None else _keys_of(self.pin.build_id)

    # The tokenizer

    @property
    def trains(self) -> bool:
        """Whether a tokenizer must still be trained on the first files' text."""
        return self.pin is None and self._pipeline.tokenizer.file is None

    @property
    def training_contents(self) -> list[str]:
        """The sha256 of each file to train the tokenizer on, in their order."""
        return [] if self.training is None else [sha256 for _, sha256 in self.training.files]

    def choose_training(self) -> frozenset[str]:
        """Chooses the files to train on; returns the paths that are not readable yet."""
        train, listing, most = self._pipeline.tokenizer.train, self.listing, self._limit.files
        if self.pin is None and self.earlier is None and not self._is_lost:
            # Published sets prove that a pin existed; its record is damaged or missing.
            self._is_lost = bool(self._sources.count(*PUBLISHED))
        self.training = None
        if self.pin is not None or self.given is not None or train is None:
            return frozenset()
        if listing is not None and most is not None:  # the listing may be older than the limit
            listing = replace(listing, files=listing.files[:most])
        self.training = choose_training_set(listing, self._sources, train.train_bytes)
        return frozenset() if self.training is None else self.training.wanted

    def freeze(
        self, result: Mapping[str, Any], trained_on: tuple[tuple[str, str], ...] | None
    ) -> Iterator[Effect]:
        """Pins the dataset to a tokenizer trained on these (path, sha256), or to a given tokenizer (None)."""
        tokenizer = TokenizerPin(
            file=f"tokenizers/{self.target.name}",
            sha256=str(result["sha256"]),
            vocab_size=int(result["vocab_size"]),
            eot=int(result["eot"]),
        )
        parameters = parameters_asked(self._pipeline, tokenizer)
        about: dict[str, Any] = {"dataset": self._dataset, "version": self._pipeline.dataset.version}
        pin = DatasetPin(
            **about,
            build_id=build_id(parameters),
            build=parameters.to_mapping(),
            tokenizer=tokenizer,
            asked=asked_of_tokenizer(self._pipeline),
            tokenizer_trained_on=trained_on,
        )
        yield WritePin(pin)
        yield event("dataset_pinned", **about, build_id=pin.build_id, vocab_size=tokenizer.vocab_size)

    @property
    def given(self) -> str | None:
        """The file that holds the tokenizer already; None where it is to be trained."""
        if self._pipeline.tokenizer.file is not None:
            return str(self._pipeline.tokenizer.file)
        # Only the pin's record is lost; the sets were built with the frozen tokenizer, which still exists.
        return str(self.target) if self._is_lost and self.target.exists() else None

    # The listing

    def keep_listing(self) -> Iterator[Effect]:
        """Writes the pin's listing: the files to train on, as far as they are settled."""
        listing, sources = self.listing, self._sources
        made_of = (listing, sources.changes, self.pin)
        if self.pin is None or listing is None or made_of == self._kept:
            return
        files: set[str] = set()
        named = frozenset(self.pin.listing)  # they stay: plans may name them
        if (part := self._slice()) is not None:
            is_known = part.full or part.settled
            is_whole = part.full or (part.settled and listing.complete)
            kept = named.union(part.paths)
            formers = (path for path in sources.formers if {path, str(sources[path].former)} & kept)
            files = {*part.paths, *formers}
            if part.stayed and not self._is_stay_recorded:
                self._is_stay_recorded = True
                about = {"files": len(part.stayed), "first": part.stayed[0], "message": STAYED}
                yield event("limit_below_slice", **about)
        else:  # keeps every path that reached its end, even if the listing dropped it
            ended = {one.path for one in sources.in_state(*TERMINAL)}
            files = {*listing.paths, *(ended | sources.formers.keys()) - sources.imported.keys()}
            is_known, is_whole = True, listing.complete
        imports = [path for path in sources.imported if path in named or sources[path].state in PUBLISHED]
        paths = (*sorted(files), *sorted(imports))
        has_ended = is_whole and all(path in sources and sources[path].state in TERMINAL for path in paths)
        limit = self._limit.model_dump(exclude_none=True)
        pin = replace(self.pin, listing=paths, complete=has_ended, whole=is_known, limit=limit)
        was_complete = self.pin.complete
        if pin != self.pin:
            yield WritePin(pin)
            if pin.complete and not was_complete:
                yield event("dataset_complete", dataset=self._dataset, files=len(pin.listing))
        self._kept = (listing, made_of[1], self.pin)

    # dataset.limit

    @property
    def beyond(self) -> frozenset[str]:
        """The listed paths that dataset.limit leaves out."""
        part = self._slice()
        return frozenset() if part is None else part.beyond

    def _slice(self) -> Slice | None:
        """Returns the configured slice of the listing; None when no limit or no listing exists.

        Files of an earlier slice that reached their end stay in it, however low the limit becomes: a plan may
        name them.
        """
        listing, sources = self.listing, self._sources
        if listing is None or self._limit == Limit():
            return None
        asked = (listing, self.pin, sources.changes)  # 0.2 s of work for 50,000 files
        if self._sliced is None or self._sliced[0] != asked:
            before = () if self.pin is None else self.pin.listing
            ended = [path for path in before if path in sources and sources[path].state in TERMINAL]
            # dataset.limit does not count imported sets.
            kept = [path for path in ended if sources[path].has_file]
            self._sliced = asked, slice_of(listing.paths, sources, self._limit, kept=kept)
        return self._sliced[1]


@functools.cache
def _keys_of(build: str) -> Callable[[str], str]:
    return lambda sha256: set_key(sha256, build)
