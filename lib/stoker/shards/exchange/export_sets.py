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

from stoker.shards.format.identity import KEY_NAME_DIGITS
from stoker.shards.format.manifest import MANIFEST, SUMS, Manifest, ManifestInvalid, beside, parse_sums
from stoker.store.errors import DataError, UnavailableError, UsageError, storage_errors

PIECE_TOKENS = 1 << 20  # read, and handed on, at once
_SET_NAME = re.compile(rf"[0-9a-f]{{{KEY_NAME_DIGITS}}}")

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
        for place in places:
            try:
                with storage_errors("read", place):
                    manifest, sums = (place / MANIFEST).read_bytes(), (place / SUMS).read_bytes()
            except FileNotFoundError:
                continue
            return cls(places, *_agreed(place, manifest, sums))
        if places[0].is_dir():
            raise DataError(f"{places[0]}: no whole shard set: {MANIFEST} or {SUMS} is missing")
        raise UnavailableError(f"{' and '.join(map(str, places))}: not there; see that the disk is mounted")

    def tokens(self, split: str) -> int:
        """How many a split has."""
        return self.manifest.books.tokens[split]

    @property
    def documents_known(self) -> bool:
        """Whether its .idx files tell documents."""
        return self.manifest.imported is None or self.manifest.imported.end_of_text is not None

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
        self._told = one.manifest.files[name]
        self._dtype = np.dtype(kind).newbyteorder("<")
        self._digest, self._size = hashlib.sha256(), 0
        self.path, self._descriptor = self._open(one, name)

    def take(self, count: int) -> Numbers:
        """The next numbers."""
        wanted = count * self._dtype.itemsize
        data = bytearray(wanted)
        view, got = memoryview(data), 0
        with storage_errors("read", self.path):
            while got < wanted and (more := os.readv(self._descriptor, [view[got:]])):
                got += more
        if got < wanted:
            raise self._wrong(f"it ends at byte {self._size + got} of {self._told.size}")
        self._digest.update(view)
        self._size += wanted
        return np.frombuffer(data, self._dtype)

    def __enter__(self) -> SetFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._size != self._told.size or os.read(self._descriptor, 1):
                    raise self._wrong(f"it does not hold {self._told.size} bytes")
                if self._digest.hexdigest() != self._told.sha256:
                    raise self._wrong(
                        f"sha256 {self._digest.hexdigest()[:16]} is not {self._told.sha256[:16]}"
                    )
        finally:
            os.close(self._descriptor)

    def _wrong(self, what: str) -> DataError:
        return DataError(
            f"{self.path}: {what}, as {MANIFEST} says: nothing is exported of a shard set that is not whole; "
            f"see `stoker verify shards {self.path.parent}`, and restore it"
        )

    @staticmethod
    def _open(one: OfferedSet, name: str) -> tuple[Path, int]:
        for place in one.places:
            with storage_errors("open", place / name):
                try:
                    return place / name, os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue  # it may have moved to the next place meanwhile
        raise DataError(f"{one.places[0] / name}: missing; restore this shard set")


def find_sets(path: Path) -> list[Path]:
    """The directory itself where it is a set, whole or not, else every set below it, by name.

    Raises UsageError where there is none.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: no directory and no pipeline file; name a shard set, or what holds some")
    found = list(_below(path))
    if not found:
        raise UsageError(
            f"{path} holds no shard set; name one, or a directory such as <hot>/shards/<dataset>"
        )
    return found


def _below(path: Path) -> Iterator[Path]:
    if _SET_NAME.fullmatch(path.resolve().name) or (path / MANIFEST).exists() or (path / SUMS).exists():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from _below(entry)


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


def _agreed(place: Path, manifest: bytes, sums: bytes) -> tuple[Manifest, str]:
    digest = hashlib.sha256(manifest).hexdigest()
    try:
        parsed, listed = Manifest.parse(manifest, place / MANIFEST), parse_sums(sums)
    except ManifestInvalid as error:
        raise DataError(f"{place}: {error}; restore this shard set") from error
    if listed != {MANIFEST: digest, **{name: file.sha256 for name, file in parsed.files.items()}}:
        raise DataError(f"{place}: {SUMS} and {MANIFEST} do not agree; restore this shard set")
    name = place.resolve().name
    if _SET_NAME.fullmatch(name) and not parsed.key.startswith(name):
        raise DataError(f"{place}: holds the shard set {parsed.key[:16]}; put it where it belongs")
    return parsed, digest
