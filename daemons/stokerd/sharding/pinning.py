"""Pinning a dataset: one tokenizer, one build id, and the refusal of any other for the same version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.config.load import refuse
from stoker.config.schema import Pipeline
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.limit import Slice, is_bounded, slice_of
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.pin import DatasetPin, TokenizerPin, read_pin, write_pin
from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source
from stoker.corpus.records.tokenizer_files import TrainingSet, choose
from stoker.kit.events import Events
from stoker.shards.format.identity import build_id, set_key
from stoker.shards.format.pinned import asked_of_tokenizer, parameters_asked, pin_faults
from stoker.store.record import RecordDamaged, set_aside


class Pinning:
    """The pin of the configured dataset version; `pin` is None until its tokenizer is frozen."""

    def __init__(self, pipeline: Pipeline, events: Events) -> None:
        self._pipeline = pipeline
        self._layout = pipeline.layout
        self._events = events
        self._dataset = pipeline.dataset.name
        self._version = pipeline.dataset.version
        self._lost = self._told_stayed = False
        self._slices: dict[
            bool, tuple[tuple[object, ...], Slice]
        ] = {}  # by whether paths beyond were asked for
        self._key_of: tuple[str, Callable[[str], str]] | None = None
        self._kept: tuple[Listing | None, int, DatasetPin] | None = None  # what the pin's listing was made of
        self._listed: tuple[Listing, frozenset[str]] | None = None
        self._joined: tuple[list[str], tuple[str, ...]] | None = None
        self.earlier: DatasetPin | None = None
        self.pin = self._read()
        self.target = self._layout.tokenizer(self._dataset, self._version)

    def _read(self) -> DatasetPin | None:
        file = self._layout.dataset(self._dataset)
        try:
            pin = read_pin(self._layout, self._dataset)
        except RecordDamaged as error:
            place = set_aside(file, self._layout.quarantine, "damaged", str(error))
            self._events.record("record_damaged", level="error", path=str(file), moved_to=str(place))
            self._lost = True
            return None
        if pin is not None and pin.version < self._version:
            self.earlier = pin
            return None
        return pin

    def refuse_another_build(self) -> None:
        """Raise ConfigError when the configuration asks for another build than the pinned one."""
        if self.pin is None:
            asked_of_tokenizer(self._pipeline)
        else:
            refuse(self._pipeline, pin_faults(self._pipeline, self.pin))

    def key_of(self) -> Callable[[str], str] | None:
        """How a content's shard set is called in this build, None before there is one."""
        if self.pin is None:
            return None
        build = self.pin.build_id
        if self._key_of is None or self._key_of[0] != build:  # the same function for the same build
            self._key_of = build, lambda sha256: set_key(sha256, build)
        return self._key_of[1]

    @property
    def is_bounded(self) -> bool:
        """Whether the configuration takes a slice of the source only."""
        return is_bounded(self._pipeline.dataset.limit)

    @property
    def tokenizer_file(self) -> Path | None:
        """The file of the tokenizer that texts are encoded with; None while it has yet to be trained."""
        if self.pin is not None:
            return self._layout.datasets / self.pin.tokenizer.file
        given = self._given()
        return None if given is None else Path(given)

    def training_set(self, listing: Listing | None, sources: Mapping[str, Source]) -> TrainingSet | None:
        """What the tokenizer is to be trained on; None when it is frozen, given, or left from a lost pin."""
        train = self._pipeline.tokenizer.train
        if self.pin is None and self.earlier is None and not self._lost:
            # Sets that were built had a pin, damaged or not there at all.
            self._lost = any(source.state in PUBLISHED for source in sources.values())
        if self.pin is not None or self._given() is not None or train is None:
            return None
        most = self._pipeline.dataset.limit.files
        if listing is not None and most is not None:  # it may have been written before that limit was lowered
            listing = replace(listing, files=listing.files[:most])
        return choose(listing, sources, train.train_bytes)

    def tokenizer_task(
        self, training: TrainingSet | None, staged: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """The task that freezes the tokenizer, None when it cannot be done yet or is done.

        `staged` maps a content's sha256 to its parquet file on hot.
        """
        if self.pin is not None:
            return None
        given = self._given()
        if given is not None:
            return {"file": given, "target": str(self.target)}
        train = self._pipeline.tokenizer.train
        if training is None or not training.ready or train is None:
            return None
        return {
            "files": [staged[sha256] for _, sha256 in training.files],
            "sha256": [sha256 for _, sha256 in training.files],
            "text_column": self._pipeline.dataset.text_column,
            "vocab_size": train.vocab_size,
            "train_bytes": train.train_bytes,
            "target": str(self.target),
        }

    def freeze(self, result: Mapping[str, Any], trained_on: tuple[tuple[str, str], ...] | None) -> DatasetPin:
        """Pin the dataset to the tokenizer a worker trained on these (path, sha256), or took over (None)."""
        tokenizer = TokenizerPin(
            file=f"tokenizers/{self.target.name}",
            sha256=str(result["sha256"]),
            vocab_size=int(result["vocab_size"]),
            eot=int(result["eot"]),
        )
        parameters = parameters_asked(self._pipeline, tokenizer)
        pin = DatasetPin(
            dataset=self._dataset,
            version=self._version,
            build_id=build_id(parameters),
            build=parameters.to_mapping(),
            tokenizer=tokenizer,
            asked=asked_of_tokenizer(self._pipeline),
            tokenizer_trained_on=trained_on,
        )
        write_pin(self._layout, pin)
        self.pin = pin
        self._events.record(
            "dataset_pinned",
            dataset=self._dataset,
            version=self._version,
            build_id=pin.build_id,
            vocab_size=tokenizer.vocab_size,
        )
        return pin

    def keep_listing(self, listing: Listing | None, sources: Catalog) -> None:
        """Keep the pin's listing: what of the source is to be trained on, as far as that is settled."""
        if self.pin is None or (listing is None and not sources.imported):
            return
        kept, changes = self._kept, sources.changes
        if kept is not None and kept[0] is listing and kept[1] == changes and kept[2] is self.pin:
            return
        paths: tuple[str, ...] = ()
        known = whole = ended = False
        if listing is None:
            pass  # what was imported does not wait for one
        elif (part := self.slice(listing, sources)) is not None:
            paths, known = part.paths, part.full or part.settled
            whole = part.full or (part.settled and listing.complete)
            paths = tuple(sorted((*paths, *self._formers(sources, paths))))
            ended = whole and all(path in sources and sources[path].state in TERMINAL for path in paths)
            self._tell_stayed(part)
        else:  # with every path that already came to its end, though the source may no longer list it
            paths, ended = self._whole(listing, sources)
            known, whole = True, listing.complete
        limit = self._pipeline.dataset.limit.model_dump(exclude_none=True)
        imports = self._imports(sources)
        complete = whole and ended and all(sources[path].state in TERMINAL for path in imports)
        pin = replace(self.pin, listing=(*paths, *imports), complete=complete, whole=known, limit=limit)
        if pin != self.pin:
            write_pin(self._layout, pin)
            if complete and not self.pin.complete:
                self._events.record("dataset_complete", dataset=self._dataset, files=len(pin.listing))
            self.pin = pin
        self._kept = listing, changes, self.pin

    def _whole(self, listing: Listing, sources: Catalog) -> tuple[tuple[str, ...], bool]:
        """Every path that is listed or came to its end, and whether all did; sorted only when changed."""
        if self._listed is None or self._listed[0] is not listing:
            self._listed, self._joined = (listing, frozenset(listing.paths)), None
        listed = self._listed[1]
        unlisted = [path for path in sources.ended if path not in listed]
        unmade = [path for path in sources.formers if sources[path].state not in TERMINAL]
        outside = [path for path in unlisted if path not in sources.imported] + unmade
        if self._joined is None or self._joined[0] != outside:
            self._joined = outside, tuple(sorted((*listed, *outside)))
        return self._joined[1], sources.count(*TERMINAL) - len(unlisted) == len(listed) and not unmade

    def _formers(self, sources: Catalog, paths: Iterable[str]) -> list[str]:
        """What the files of a slice held before: it stays with them, and counts nothing."""
        kept = frozenset((*paths, *(() if self.pin is None else self.pin.listing))) if sources.formers else ()
        return [path for path in sources.formers if path in kept or sources[path].former in kept]

    def _imports(self, sources: Catalog) -> tuple[str, ...]:
        """What was imported, to be trained on after all files; once listed it stays, for plans name it."""
        listed = frozenset(() if self.pin is None or not sources.imported else self.pin.listing)
        return tuple(
            path for path in sorted(sources.imported) if path in listed or sources[path].state in PUBLISHED
        )

    def slice(
        self, listing: Listing | None, sources: Mapping[str, Source], known: Iterable[str] = ()
    ) -> Slice | None:
        """The configured slice of what is listed and `known`; None when nothing bounds it, or none is listed.

        What was in it and has come to its end stays: a plan may name it, whatever the limit is lowered to.
        """
        if listing is None or not is_bounded(self._pipeline.dataset.limit):
            return None
        # Asked several times a turn; for 50,000 files it is 0.2 s of work, and a look whether to do it 10 ms.
        asked = (listing, self.pin, tuple(sources.values()), frozenset(known))
        kept = self._slices.get(bool(asked[-1]))
        if kept is None or kept[0] != asked:
            kept = self._slices[bool(asked[-1])] = asked, self._slice(listing, sources, asked[-1])
        return kept[1]

    def _slice(self, listing: Listing, sources: Mapping[str, Source], known: frozenset[str]) -> Slice:
        before = () if self.pin is None else self.pin.listing
        ended = [path for path in before if path in sources and sources[path].state in TERMINAL]
        # What was imported is no part of what the limit is about.
        kept = [path for path in ended if sources[path].has_file]
        known = frozenset(path for path in known if path not in sources or sources[path].has_file)
        return slice_of(listing.paths, sources, self._pipeline.dataset.limit, kept=kept, known=known)

    def _tell_stayed(self, part: Slice) -> None:
        """Say it once when the limit would leave out what was built as part of the slice."""
        if part.stayed and not self._told_stayed:
            self._told_stayed = True
            self._events.record(
                "limit_below_slice",
                level="warning",
                files=len(part.stayed),
                first=part.stayed[0],
                message="these were built before dataset.limit left them out; they stay, for a plan may name "
                "them. Another dataset.version starts anew",
            )

    def _given(self) -> str | None:
        if self._pipeline.tokenizer.file is not None:
            return str(self._pipeline.tokenizer.file)
        # The record of the pin is lost, the frozen tokenizer is not: it is the one the sets were built with.
        return str(self.target) if self._lost and self.target.exists() else None
