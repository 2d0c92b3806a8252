"""Pinning a dataset: one tokenizer, one build id, its listing, and the refusal of any other build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.config.load import refuse
from stoker.config.schema import Pipeline
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.limit import Slice, is_bounded, slice_of
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.pin import DatasetPin, TokenizerPin, read_pin
from stoker.corpus.records.sources import PUBLISHED, TERMINAL
from stoker.corpus.records.tokenizer_files import TrainingSet, choose
from stoker.kit.events import Events
from stoker.shards.format.identity import build_id, set_key
from stoker.shards.format.pinned import asked_of_tokenizer, parameters_asked, pin_faults
from stoker.store.record import RecordDamaged, set_aside
from stokerd.sharding.effects import Effect, WritePin, event


class Pinning:
    """The pin of the configured dataset version; `pin` is None until its tokenizer is frozen.

    `earlier` is the pin of a lower version, `training` what the tokenizer is to be trained on.
    """

    def __init__(self, pipeline: Pipeline, events: Events) -> None:
        self._pipeline, self._layout = pipeline, pipeline.layout
        self._dataset, self._limit = pipeline.dataset.name, pipeline.dataset.limit
        self._is_lost = self._is_stay_recorded = False
        self._slices: dict[bool, tuple[tuple[object, ...], Slice]] = {}  # by whether other paths are known
        self._key_of: tuple[str, Callable[[str], str]] | None = None
        self._kept: tuple[object, ...] = ()  # what the pin's listing was made of
        self._listed: tuple[Listing, frozenset[str]] | None = None
        self._joined: tuple[list[str], tuple[str, ...]] | None = None
        self.earlier: DatasetPin | None = None
        self.training: TrainingSet | None = None
        self.pin = self._read(events)
        self.target = self._layout.tokenizer(self._dataset, pipeline.dataset.version)

    def _read(self, events: Events) -> DatasetPin | None:
        file = self._layout.dataset(self._dataset)
        try:
            pin = read_pin(self._layout, self._dataset)
        except RecordDamaged as error:
            place = set_aside(file, self._layout.quarantine, "damaged", str(error))
            events.record("record_damaged", level="error", path=str(file), moved_to=str(place))
            self._is_lost = True
            return None
        if pin is not None and pin.version < self._pipeline.dataset.version:
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

    # The tokenizer

    @property
    def trains(self) -> bool:
        """Whether the tokenizer is yet to be made of the first files' text."""
        return self.pin is None and self._pipeline.tokenizer.file is None

    @property
    def training_contents(self) -> frozenset[str]:
        """The contents on hot that the tokenizer is to be trained on."""
        return frozenset(sha256 for _, sha256 in self.training.files) if self.training else frozenset()

    def choose_training(self, listing: Listing | None, sources: Catalog) -> frozenset[str]:
        """Choose the files to train on; returns the paths that are not readable yet."""
        self.training = self._training_set(listing, sources)
        return frozenset() if self.training is None else self.training.wanted

    def _training_set(self, listing: Listing | None, sources: Catalog) -> TrainingSet | None:
        train = self._pipeline.tokenizer.train
        if self.pin is None and self.earlier is None and not self._is_lost:
            # Sets that were built had a pin, damaged or not there at all.
            self._is_lost = bool(sources.count(*PUBLISHED))
        if self.pin is not None or self._given() is not None or train is None:
            return None
        most = self._limit.files
        if listing is not None and most is not None:  # it may have been written before that limit was lowered
            listing = replace(listing, files=listing.files[:most])
        return choose(listing, sources, train.train_bytes)

    def tokenizer_task(self, staged: Mapping[str, str]) -> dict[str, Any] | None:
        """The task that freezes the tokenizer, None when it cannot be done yet or is done.

        `staged` maps a content's sha256 to its parquet file on hot.
        """
        given, train = self._given(), self._pipeline.tokenizer.train
        if self.pin is None and given is not None:
            return {"file": given, "target": str(self.target)}
        if self.training is None or not self.training.ready or train is None:
            return None
        contents = [sha256 for _, sha256 in self.training.files]
        if not staged.keys() >= set(contents):
            return None  # a worker has one of them in hand
        return {
            "files": [staged[sha256] for sha256 in contents],
            "sha256": contents,
            "text_column": self._pipeline.dataset.text_column,
            "vocab_size": train.vocab_size,
            "train_bytes": train.train_bytes,
            "target": str(self.target),
        }

    def freeze(
        self, result: Mapping[str, Any], trained_on: tuple[tuple[str, str], ...] | None
    ) -> Iterator[Effect]:
        """Pin the dataset to the tokenizer a worker trained on these (path, sha256), or took over (None)."""
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

    def _given(self) -> str | None:
        if self._pipeline.tokenizer.file is not None:
            return str(self._pipeline.tokenizer.file)
        # The record of the pin is lost, the frozen tokenizer is not: it is the one the sets were built with.
        return str(self.target) if self._is_lost and self.target.exists() else None

    # The listing

    def keep_listing(self, listing: Listing | None, sources: Catalog) -> Iterator[Effect]:
        """Keep the pin's listing: what of the source is to be trained on, as far as that is settled."""
        if self.pin is None or (listing is None and not sources.imported):
            return
        made_of = (listing, sources.changes, self.pin)
        if len(self._kept) == 3 and all(a is b or a == b for a, b in zip(self._kept, made_of, strict=True)):
            return
        paths: tuple[str, ...] = ()
        is_known = is_whole = has_ended = False
        if listing is None:
            pass  # what was imported does not wait for one
        elif (part := self.slice(listing, sources)) is not None:
            is_known = part.full or part.settled
            is_whole = part.full or (part.settled and listing.complete)
            paths = tuple(sorted((*part.paths, *self._formers(sources, part.paths))))
            has_ended = is_whole and all(
                path in sources and sources[path].state in TERMINAL for path in paths
            )
            yield from self._say_stayed(part)
        else:  # with every path that already came to its end, though the source may no longer list it
            paths, has_ended = self._whole(listing, sources)
            is_known, is_whole = True, listing.complete
        imports = self._imports(sources)
        pin = replace(
            self.pin,
            listing=(*paths, *imports),
            complete=is_whole and has_ended and all(sources[path].state in TERMINAL for path in imports),
            whole=is_known,
            limit=self._limit.model_dump(exclude_none=True),
        )
        was_complete = self.pin.complete
        if pin != self.pin:
            yield WritePin(pin)
            if pin.complete and not was_complete:
                yield event("dataset_complete", dataset=self._dataset, files=len(pin.listing))
        self._kept = (listing, made_of[1], self.pin)

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
        known = sorted(sources.imported)
        return tuple(path for path in known if path in listed or sources[path].state in PUBLISHED)

    # dataset.limit

    def beyond(self, listing: Listing | None, sources: Catalog, receipts: Iterable[str]) -> frozenset[str]:
        """What the configured slice of the source leaves out."""
        if not is_bounded(self._limit):
            return frozenset()
        part = self.slice(listing, sources, {*receipts, *sources})
        return frozenset() if part is None else part.beyond

    def slice(self, listing: Listing | None, sources: Catalog, known: Iterable[str] = ()) -> Slice | None:
        """The configured slice of what is listed and `known`; None when nothing bounds it, or none is listed.

        What was in it and has come to its end stays: a plan may name it, whatever the limit is lowered to.
        """
        if listing is None or not is_bounded(self._limit):
            return None
        known = frozenset(known)
        asked = (listing, self.pin, sources.changes, known)  # 0.2 s of work for 50,000 files
        kept = self._slices.get(bool(known))
        if kept is None or kept[0] != asked:
            kept = self._slices[bool(known)] = asked, self._slice(listing, sources, known)
        return kept[1]

    def _slice(self, listing: Listing, sources: Catalog, known: frozenset[str]) -> Slice:
        before = () if self.pin is None else self.pin.listing
        ended = [path for path in before if path in sources and sources[path].state in TERMINAL]
        # What was imported is no part of what the limit is about.
        kept = [path for path in ended if sources[path].has_file]
        known = frozenset(path for path in known if path not in sources or sources[path].has_file)
        return slice_of(listing.paths, sources, self._limit, kept=kept, known=known)

    def _say_stayed(self, part: Slice) -> Iterator[Effect]:
        """Say once that the limit would leave out what was built as part of the slice."""
        if part.stayed and not self._is_stay_recorded:
            self._is_stay_recorded = True
            words = (
                "these were built before dataset.limit left them out; they stay, for a plan may name them. "
                "Another dataset.version starts anew"
            )
            first = part.stayed[0]
            yield event("limit_below_slice", "warning", files=len(part.stayed), first=first, message=words)
