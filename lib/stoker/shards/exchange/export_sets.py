"""Shard sets on their way out: found, held against each other, and proven while they are read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.shards.format.inspection import inspect_set
from stoker.shards.format.manifest import MANIFEST, Manifest, beside
from stoker.store.errors import DataError, UnavailableError, UsageError, storage_errors

PIECE_TOKENS = 1 << 20  # read, and handed on, at once
UNLISTED = "in no list of this set"  # a finding that says nothing against the set
_SET_NAME = re.compile(r"[0-9a-f]{16}")  # a published set's directory, even one that was emptied
_SET_FILE = re.compile(r"SHA256SUMS|manifest\.json|(train|val)-\d+\.(bin|idx|row)")

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class OfferedSet:
    """A set whose manifest and sums agree; `places` are where its files may be, the best first."""

    places: tuple[Path, ...]
    manifest: Manifest
    manifest_sha256: str

    @classmethod
    def at(cls, *places: Path) -> OfferedSet:
        """Read what the set says of itself.

        Raises DataError where that cannot be true, UnavailableError where it lies in none of the places.
        """
        place = next((place for place in places if (place / MANIFEST).exists()), places[0])
        if not place.is_dir():
            raise UnavailableError(
                f"{' and '.join(map(str, places))}: not there; see that the disk is mounted"
            )
        found = inspect_set(place)
        wrong = [str(place / finding) for finding in found.findings if not finding.endswith(UNLISTED)]
        name = place.resolve().name
        if found.manifest is not None and _SET_NAME.fullmatch(name) and found.manifest.key[:16] != name:
            wrong.append(f"{place}: it holds the shard set {found.manifest.key[:16]}")
        if found.manifest is None or found.manifest_sha256 is None or wrong:
            raise DataError(f"{'; '.join(wrong)}: no whole shard set; restore it")
        return cls(places, found.manifest, found.manifest_sha256)

    def tokens(self, split: str) -> int:
        """How many a split has."""
        return self.manifest.books.tokens[split]

    def pieces(self, split: str) -> Iterator[Numbers]:
        """The tokens of a split, some at a time; raises DataError where they are others than it says."""
        for name, file in self.manifest.bins(split):
            with SetFile(self, name, self.manifest.dtype) as reader:
                for first in range(0, file.tokens or 0, PIECE_TOKENS):
                    yield reader.take(min(PIECE_TOKENS, (file.tokens or 0) - first))

    def documents(self, split: str, most_tokens: int, most: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Tokens of the next documents, and their ends in them: so many at most, or one alone."""
        for name, file in self.manifest.bins(split):
            with (
                SetFile(self, name, self.manifest.dtype) as tokens,
                SetFile(self, beside(name, "idx"), "uint64") as index,
            ):
                begin, left = 0, file.documents or 0
                while left:
                    ends = index.take(min(most, left)).astype(np.int64)
                    left -= ends.size
                    if np.any(np.diff(ends, prepend=begin) < 0):
                        raise DataError(f"{index.path}: document ends do not rise; restore this set")
                    while ends.size:
                        fit = int(np.searchsorted(ends, begin + most_tokens, side="right")) or 1
                        yield tokens.take(int(ends[fit - 1]) - begin), ends[:fit] - begin
                        begin, ends = int(ends[fit - 1]), ends[fit:]


class SetFile:
    """One data file of a set, read once from its front; leaving it proves what was read.

    Raises DataError for another content than the manifest tells, StorageError where it cannot be read.
    """

    def __init__(self, one: OfferedSet, name: str, kind: str) -> None:
        self._told, self._dtype = one.manifest.files[name], np.dtype(kind).newbyteorder("<")
        self._digest = hashlib.sha256()
        # It may have moved to the next place meanwhile.
        self.path = next(
            (place / name for place in one.places if (place / name).exists()), one.places[0] / name
        )
        try:
            with storage_errors("open", self.path):
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DataError(f"{self.path}: missing; restore this shard set") from None

    def take(self, count: int) -> Numbers:
        """The next numbers."""
        data = bytearray(count * self._dtype.itemsize)
        view = memoryview(data)
        with storage_errors("read", self.path):
            while view and (more := os.readv(self._descriptor, [view])):
                view = view[more:]
        if view:
            raise self._wrong("it is shorter")
        self._digest.update(data)
        return np.frombuffer(data, self._dtype)

    def __enter__(self) -> SetFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        try:
            if kind is None and os.read(self._descriptor, 1):
                raise self._wrong("it is longer")
            if kind is None and self._digest.hexdigest() != self._told.sha256:
                raise self._wrong("its sha256 is another")
        finally:
            os.close(self._descriptor)

    def _wrong(self, what: str) -> DataError:
        return DataError(
            f"{self.path}: {what} than {MANIFEST} says ({self._told.size} bytes, {self._told.sha256[:16]}): "
            "nothing is exported of a shard set that is not whole; see `stoker verify shards "
            f"{self.path.parent}`, and restore it"
        )


def find_sets(path: Path) -> list[Path]:
    """The directory itself where it is a set, whole or not, else every set below it, by name.

    Raises UsageError where it is no directory.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; a shard set is one")
    entries = sorted(path.iterdir())
    if _SET_NAME.fullmatch(path.resolve().name) or any(_SET_FILE.fullmatch(entry.name) for entry in entries):
        return [path]
    below = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [found for entry in below for found in find_sets(entry)]


def agree(sets: Sequence[OfferedSet]) -> None:
    """Raise DataError unless the sets' tokens can stand in one stream: of one build, and none twice."""
    by_key: dict[str, OfferedSet] = {}
    for one in sets:
        if (twin := by_key.setdefault(one.manifest.key, one)) is not one:
            raise DataError(f"{one.places[0]} is the same shard set as {twin.places[0]}; name it once")
        first = sets[0]
        for what in ("tokenizer_sha256", "build_id"):
            mine, theirs = getattr(one.manifest, what), getattr(first.manifest, what)
            if mine != theirs:
                raise DataError(
                    f"{one.places[0]}: {what} {mine[:16]}, but {first.places[0]} has {theirs[:16]}: what two "
                    "builds made does not belong into one export; name a pipeline file, or one set"
                )
