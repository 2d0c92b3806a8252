"""Reads global batches in the plan's order: always full, each window once, the same for any micro-batch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from stoker.plan.log import Plan, Segment, read_plan
from stoker.plan.positions import Position, Skip, after, left_after, take
from stoker.plan.windows import SegmentReader, Windows
from stoker.store.errors import DataError

OPEN_SEGMENTS = 2  # a batch may reach into the next entry


@dataclass(frozen=True)
class Batch:
    """The windows of one optimizer step."""

    groups: tuple[Windows, ...]  # int64 (b, seq_len + 1); two groups where entries of different seq_len meet
    position: Position  # after the batch

    @property
    def tokens(self) -> int:
        """The tokens trained on: a window has one token more than targets."""
        return sum(group.shape[0] * (group.shape[1] - 1) for group in self.groups)


class Batches:
    """Takes full batches from the plan, and reads a grown plan again; never waits."""

    def __init__(
        self,
        plan_file: Path,
        shards_root: Path,
        *,
        position: Position,
        size: int,
        vocab_size: int,
        skips: tuple[Skip, ...] = (),
    ) -> None:
        self._file, self._shards_root = plan_file, shards_root
        self._size, self._vocab_size = size, vocab_size
        self._skips = skips
        self._readers: OrderedDict[int, SegmentReader] = OrderedDict()
        self._plan_size = -1
        self.plan = Plan((), "")
        self.position = position
        self.reread()

    @property
    def exhausted(self) -> bool:
        """Whether the plan has ended and less than a batch is left."""
        return self.plan.ended and self.remainder < self._size

    @property
    def longest(self) -> int:
        """The longest seq_len in the plan, 0 for an empty plan."""
        return max((segment.seq_len for segment in self.plan.segments), default=0)

    @property
    def remainder(self) -> int:
        """The number of windows left in the plan."""
        return left_after(self.plan, self.position, self._skips)

    def next(self) -> Batch | None:
        """Returns the next batch, or None while the plan has too few windows."""
        pieces = take(self.plan, self.position, self._size, self._skips)
        if pieces is None:
            return None
        windows = [self._reader(entry).at_offsets(offsets) for entry, offsets in pieces]
        self.position = after(pieces, self.position)
        groups = (list(same) for _, same in groupby(windows, key=lambda some: some.shape[1]))
        return Batch(
            tuple(same[0] if len(same) == 1 else np.concatenate(same) for same in groups), self.position
        )

    def reread(self) -> bool:
        """Reads the plan again if it has grown, and returns whether it has.

        Raises DataError when its earlier lines have changed.
        """
        size = self._file.stat().st_size if self._file.exists() else 0
        if size == self._plan_size:
            return False
        plan = read_plan(self._file)
        if plan.hashes[: len(self.plan.hashes)] != self.plan.hashes:
            raise DataError(
                f"{self._file} is not a continuation of the plan this run has read; nothing may rewrite it"
            )
        self.plan, self._plan_size = plan, size
        return True

    def _reader(self, number: int) -> SegmentReader:
        reader = self._readers.get(number)
        if reader is None:
            segment = self.plan.entries[number]
            assert isinstance(segment, Segment)
            reader = SegmentReader(segment, self._shards_root, vocab_size=self._vocab_size)
            self._readers[number] = reader
            while len(self._readers) > OPEN_SEGMENTS:
                self._readers.popitem(last=False)[1].close()
        return reader
