"""Global batches in the plan's order: always full, each window once, the same whatever the micro-batch."""

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

OPEN_SEGMENTS = 2  # a batch may reach from one entry into the next


@dataclass(frozen=True)
class Batch:
    """Windows as int64 in groups (b, seq_len + 1) that share a length, and the position after them.

    A batch that reaches from one entry into another with a different seq_len has two groups, any other one.
    """

    groups: tuple[Windows, ...]
    position: Position

    @property
    def tokens(self) -> int:
        """Tokens trained on: each window has one more than it gives targets."""
        return sum(group.shape[0] * (group.shape[1] - 1) for group in self.groups)


class Batches:
    """Takes full batches from the plan, and reads it again when it has grown; never waits."""

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
        """Whether the plan has ended and holds less than one more batch."""
        return self.plan.ended and self.remainder < self._size

    @property
    def longest(self) -> int:
        """The longest seq_len of the plan, 0 for an empty one."""
        return max((segment.seq_len for segment in self.plan.segments), default=0)

    @property
    def remainder(self) -> int:
        """Windows that the plan still has."""
        return left_after(self.plan, self.position, self._skips)

    def next(self) -> Batch | None:
        """The next batch, or None while the plan has too few windows."""
        pieces = take(self.plan, self.position, self._size, self._skips)
        if pieces is None:
            return None
        windows = [self._reader(entry).at_offsets(offsets) for entry, offsets in pieces]
        self.position = after(pieces, self.position)
        groups = (list(same) for _, same in groupby(windows, key=lambda some: some.shape[1]))
        return Batch(
            tuple(same[0] if len(same) == 1 else np.concatenate(same) for same in groups), self.position
        )

    def reread(self) -> None:
        """Look whether the plan has grown; raises DataError when what was read of it before has changed."""
        size = self._file.stat().st_size if self._file.exists() else 0
        if size == self._plan_size:
            return
        plan = read_plan(self._file)
        if plan.hashes[: len(self.plan.hashes)] != self.plan.hashes:
            raise DataError(
                f"{self._file} is not a continuation of the plan this run has read; nothing may rewrite it"
            )
        self.plan, self._plan_size = plan, size

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
