"""With a limit of rows or tokens: how far ahead of what is counted a source is fetched.

How many files fill such a limit is known only as they are built. Fetching all that is listed would bring a
terabyte for ten million rows, so the files come in listing order, a bounded stretch ahead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from stoker.config.schema import Pipeline
from stoker.corpus.records.limit import slice_of
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.record_dir import Shelf
from stoker.corpus.records.sources import TERMINAL, Source
from stoker.corpus.records.tokenizer_files import choose

LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class Stretch:
    """The paths to have now; `whole`: they are all that the limit will ever take."""

    paths: frozenset[str]
    whole: bool


def stretch_of(listing: Listing, sources: Mapping[str, Source], pipeline: Pipeline) -> Stretch:
    """The files of a slice that is full, else those counted, and so many behind the first that is not."""
    limit = pipeline.dataset.limit
    part = slice_of(listing.paths, sources, limit)
    if part.full:
        return Stretch(frozenset(part.paths), whole=True)
    order = sorted(listing.paths)[: limit.files]
    counted = {path for path in order if path in sources and sources[path].state in TERMINAL}
    ahead = pipeline.stage.queue_files + pipeline.download.files_at_once
    wanted = set(islice((path for path in order if path not in counted), ahead))
    training = pipeline.tokenizer.train
    if training is not None:  # nothing is built, so nothing counted, before its files are here
        wanted |= choose(listing, sources, training.train_bytes).wanted.intersection(order)
    paths = frozenset(counted | wanted)
    return Stretch(paths, whole=len(paths) == len(order))


class SliceAhead:
    """Follows the records of the stage-shard loop; without such a limit everything is meant."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        limit = pipeline.dataset.limit
        self.bounded = bool(limit.rows or limit.tokens)
        self._shelf = Shelf(pipeline.layout.sources, pipeline.dataset.name, Source.from_record, patient=True)
        self._looked = -LOOK_EVERY_S
        self._of: Listing | None = None
        self.stretch: Stretch | None = None

    def moved(self, listing: Listing | None) -> bool:
        """Look; whether another stretch is to be fetched now."""
        now = time.monotonic()
        if not self.bounded or listing is None or now < self._looked + LOOK_EVERY_S:
            return False
        self._looked = now
        sources = self._shelf.read()
        if not self._shelf.take_changed() and listing.files == (self._of and self._of.files):
            return False
        self._of, before = listing, self.stretch
        self.stretch = stretch_of(listing, sources, self._pipeline)
        return self.stretch != before
