"""Finds the shard sets of a run by key: their sources, their disks, their documents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.config.schema import Pipeline
from stoker.corpus.records.sources import PUBLISHED, Source
from stoker.plan.log import Segment
from stoker.shards.format.identity import set_key
from stoker.shards.format.reader import ShardSet
from stoker.store.errors import DataError, UnavailableError
from stoker.store.layout import HotLayout, WarmLayout

Place = Literal["hot", "warm"]
Split = Literal["train", "val"]


class Document(NamedTuple):
    """A document of a split: its number in the split, its row in the source (None: not known), its tokens."""

    number: int
    row: int | None
    first: int
    stop: int


class Stream:
    """A split of a shard set as a stream of tokens over all files; documents include their end-of-text."""

    def __init__(self, shards: ShardSet, split: Split) -> None:
        found, rows = list(shards.shards(split)), list(shards.rows(split))
        self._tokens = [tokens for tokens, _ in found]
        self._starts = list(accumulate(map(len, self._tokens), initial=0))
        ends = [part.astype(np.int64) + start for (_, part), start in zip(found, self._starts, strict=False)]
        self._ends = np.concatenate([np.empty(0, np.int64), *ends])
        self._rows = np.concatenate(rows).astype(np.int64) if rows else None

    @property
    def tokens(self) -> int:
        return self._starts[-1]

    def documents(self, first: int, stop: int) -> Iterator[Document]:
        """Yields the documents that have tokens in [first, stop), each with its full range."""
        number = int(np.searchsorted(self._ends, first, side="right"))
        while number < len(self._ends) and (document := self._document(number)).first < stop:
            yield document
            number += 1

    def of_row(self, row: int) -> Document | None:
        """Returns the document of this row of the source, None where this split does not have it."""
        if self._rows is None:
            return None
        number = int(np.searchsorted(self._rows, row))
        is_there = number < len(self._rows) and self._rows[number] == row
        return self._document(number) if is_there else None

    def read(self, first: int, stop: int) -> npt.NDArray[Any]:
        """Returns the tokens [first, stop)."""
        parts = zip(self._tokens, self._starts, strict=False)
        return np.concatenate([part[max(0, first - start) : max(0, stop - start)] for part, start in parts])

    def _document(self, number: int) -> Document:
        row = None if self._rows is None else int(self._rows[number])
        first = int(self._ends[number - 1]) if number else 0
        return Document(number, row, first, int(self._ends[number]))


class OpenSet:
    """A shard set found on hot or else on warm; mapped, so that it may be removed while it is read."""

    def __init__(self, path: Path, place: Place) -> None:
        """Opens the set; raises FileNotFoundError where it does not exist, or was removed meanwhile."""
        shards = ShardSet(path)
        self.path, self.place, self.manifest = path, place, shards.manifest
        self.train, self.val = Stream(shards, "train"), Stream(shards, "val")


class Library:
    """The shard sets of a build of a dataset, opened on demand; reads only."""

    def __init__(
        self, pipeline: Pipeline, dataset: str, build_id: str, sources: Mapping[str, Source]
    ) -> None:
        disks: dict[Place, HotLayout | WarmLayout | None]
        disks = {"hot": pipeline.hot_layout, "warm": pipeline.warm_layout}
        self._folders = {place: disk.shards(dataset) for place, disk in disks.items() if disk is not None}
        self._build_id = build_id
        self._by_key: dict[str, Source] = {}
        for source in sources.values():
            key = self.key_of(source)
            # prefer the source that is not a duplicate
            if source.state in PUBLISHED or key not in self._by_key:
                self._by_key[key] = source
        self._open: dict[str, OpenSet] = {}

    def key_of(self, source: Source) -> str:
        return set_key(source.sha256, self._build_id)

    def source_of(self, key: str) -> Source | None:
        """Returns the source of a set, None where no record has its content any more."""
        return self._by_key.get(key)

    def open(self, key: str, manifest_sha256: str | None = None) -> OpenSet:
        """Returns the set with this key, and with this manifest if given.

        Raises UnavailableError where no disk has it now, DataError where another set is in its place.
        """
        found = self._open.get(key) or self._find(key)
        if found.manifest.key != key or manifest_sha256 not in (None, found.manifest.sha256):
            raise DataError(
                f"{found.path}: not the set that the plan names; prove it with "
                "`stoker verify shards`, and see in `stoker events` whether it is being restored"
            )
        self._open[key] = found
        return found

    def train_tokens(self, key: str, manifest_sha256: str) -> int:
        """Returns the length of a set's train stream: from the record, else counted."""
        source = self._by_key.get(key)
        if source is not None and source.manifest_sha256 == manifest_sha256 and source.books is not None:
            return source.books.train_tokens
        return self.open(key, manifest_sha256).train.tokens

    def _find(self, key: str) -> OpenSet:
        # hot again: the set may have come back from warm meanwhile
        places: list[Place] = [*self._folders, "hot"]
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                return OpenSet(self._folders[place] / key[:16], place)
        source = self._by_key.get(key)
        of = "which no source on record has any more" if source is None else f"{source.path} ({source.state})"
        raise UnavailableError(
            f"shard set {key[:16]} of {of} is not in {', nor in '.join(map(str, self._folders.values()))}; "
            + ("see that warm is mounted, or " if "warm" in self._folders else "")
            + "try again when `stoker data plan` shows it on hot"
        )


class SegmentMap:
    """The places of a plan entry's sets in its stream of tokens."""

    def __init__(self, segment: Segment, library: Library) -> None:
        self._library, self._sets = library, tuple(segment.sets)
        lengths = [library.train_tokens(key, digest) for key, digest in self._sets]
        self._starts = list(accumulate(lengths, initial=0))
        if misfit := segment.misfit(lengths):
            raise DataError(f"plan entry {segment.n} has {misfit}; run `stoker audit`")

    def starts_of(self, key: str) -> list[int]:
        """Returns the offsets in the entry's stream at which a set begins; empty for an unnamed set."""
        return [start for start, (name, _) in zip(self._starts, self._sets, strict=False) if name == key]

    def parts(self, first: int, stop: int) -> Iterator[tuple[str, Stream, int, int]]:
        """Yields (key, train stream, first, stop) of each set with tokens in a range of the entry's stream.

        first and stop count in the set's train stream.
        """
        for (key, digest), start, end in zip(self._sets, self._starts, self._starts[1:], strict=False):
            low, high = max(first, start), min(stop, end)
            if low < high:
                yield key, self._library.open(key, digest).train, low - start, high - start
