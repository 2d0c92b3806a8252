"""With a limit of rows or tokens: which files of a source to fetch now.

How many files fill such a limit is known only as they are built. Fetching all that is listed would bring a
terabyte for ten million rows, so the files come in listing order, a bounded stretch ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from stoker.config.schema import Pipeline
from stoker.corpus.records.limit import slice_of
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import TERMINAL, Source
from stoker.corpus.records.tokenizer_files import choose

LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class Stretch:
    """The paths to have now; `is_whole`: they are all that the limit will ever take."""

    paths: frozenset[str]
    is_whole: bool


def stretch_of(listing: Listing, sources: Mapping[str, Source], pipeline: Pipeline) -> Stretch:
    """The files of a slice that is full, else those counted, and so many behind the first that is not."""
    limit = pipeline.dataset.limit
    part = slice_of(listing.paths, sources, limit)
    if part.full:
        return Stretch(frozenset(part.paths), is_whole=True)
    order = sorted(listing.paths)[: limit.files]
    counted = {path for path in order if path in sources and sources[path].state in TERMINAL}
    ahead = pipeline.stage.queue_files + pipeline.download.files_at_once
    wanted = set(islice((path for path in order if path not in counted), ahead))
    training = pipeline.tokenizer.train
    if training is not None:  # nothing is built, so nothing counted, before its files are here
        wanted |= choose(listing, sources, training.train_bytes).wanted.intersection(order)
    paths = frozenset(counted | wanted)
    return Stretch(paths, is_whole=len(paths) == len(order))


class StretchReader:
    """Follows the records of the stage-shard loop: `stretch` is to be had now, everything without a limit."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        limit = pipeline.dataset.limit
        self.is_bounded = bool(limit.rows or limit.tokens)
        self._sources = RecordDir(
            pipeline.layout.sources, pipeline.dataset.name, Source.from_record, patient=True
        )
        self._looked_at = -LOOK_EVERY_S
        self._files: tuple[tuple[str, int], ...] = ()
        self.stretch = Stretch(frozenset(), is_whole=not self.is_bounded)

    def has_moved(self, listing_now: Callable[[], Listing]) -> bool:
        """Look, now and then; whether another stretch is to be fetched now."""
        now = time.monotonic()
        if not self.is_bounded or now < self._looked_at + LOOK_EVERY_S:
            return False
        self._looked_at = now
        sources, listing = self._sources.read(), listing_now()
        if not self._sources.take_changed() and listing.files == self._files:
            return False
        before, self._files = self.stretch, listing.files
        self.stretch = stretch_of(listing, sources, self._pipeline)
        return self.stretch != before
