"""Shard sets to export: found, checked to fit one stream, and proven while they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.shards.format.manifest import MANIFEST, Manifest
from stoker.shards.format.proof import inspect_set
from stoker.store.errors import DataError, UnavailableError, storage_errors

PIECE_TOKENS = 1 << 20  # read at a time

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class OfferedSet:
    """A set whose manifest and sums agree; `places` are where its files may be, the best first."""

    places: tuple[Path, ...]
    manifest: Manifest
    manifest_sha256: str

    @classmethod
    def at(cls, *places: Path) -> OfferedSet:
        """Checks a set's manifest and sums.

        Raises DataError where they are wrong, UnavailableError where the set is in none of the places.
        """
        place = next((place for place in places if (place / MANIFEST).exists()), places[0])
        if not place.is_dir():
            raise UnavailableError(
                f"{' and '.join(map(str, places))}: not there; see that the disk is mounted"
            )
        found = inspect_set(place)
        if found.manifest is None or found.manifest_sha256 is None or found.findings:
            wrong = "; ".join(str(place / finding) for finding in found.findings)
            raise DataError(f"{wrong}: no whole shard set; restore it")
        return cls(places, found.manifest, found.manifest_sha256)

    def tokens(self, split: str) -> int:
        """Returns the number of tokens in a split."""
        return self.manifest.books.of(split)[1]

    def pieces(self, split: str) -> Iterator[Numbers]:
        """Yields the tokens of a split in pieces; raises DataError where a file's hash is wrong."""
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        for name, file in self.manifest.bins(split):
            # The set may have moved to the next place meanwhile.
            place = next((place for place in self.places if (place / name).exists()), self.places[0])
            path, digest = place / name, hashlib.sha256()
            try:
                with storage_errors("read", path), path.open("rb") as stream:
                    while data := stream.read(PIECE_TOKENS * dtype.itemsize):
                        digest.update(data)
                        yield np.frombuffer(data, dtype)
            except (FileNotFoundError, ValueError) as error:  # gone, or torn within a number
                raise DataError(f"{path}: {error}; restore this shard set") from error
            if digest.hexdigest() != file.sha256:
                raise DataError(
                    f"{path}: its content is not what {MANIFEST} says ({file.size} bytes, "
                    f"{file.sha256[:16]}): only whole shard sets are exported; see `stoker verify shards "
                    f"{place}`, and restore it"
                )


def agree(sets: Sequence[OfferedSet]) -> None:
    """Raises DataError unless the sets' tokens fit one stream: all of one build, and no set twice."""
    first, by_key = sets[0], dict[str, OfferedSet]()
    for one in sets:
        if (twin := by_key.setdefault(one.manifest.key, one)) is not one:
            raise DataError(f"{one.places[0]} is the same shard set as {twin.places[0]}; name it once")
        for what in ("tokenizer_sha256", "build_id"):
            mine, theirs = getattr(one.manifest, what), getattr(first.manifest, what)
            if mine != theirs:
                raise DataError(
                    f"{one.places[0]}: {what} {mine[:16]}, but {first.places[0]} has {theirs[:16]}: one "
                    "export takes sets of one build; name a pipeline file, or one set"
                )
