"""Finds published shard sets and reads one: its token files as arrays, its documents one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.shards.format.manifest import MANIFEST, Manifest, beside
from stoker.shards.format.proof import SET_NAME
from stoker.store.errors import DataError, UsageError, storage_errors

Tokens = npt.NDArray[Any]  # of the set's own dtype, little-endian
_SET_FILE = re.compile(r"SHA256SUMS|manifest\.json|(train|val)-\d+\.(bin|idx|row)")


class ShardSet:
    """A set whose manifest parses and whose files have its sizes; their content is not proven here.

    Raises DataError for a contradiction, StorageError where the set cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors("read", path):
            self.manifest = Manifest.parse((path / MANIFEST).read_bytes(), path / MANIFEST)
            for name, file in self.manifest.files.items():
                if (size := (path / name).stat().st_size) != file.size:
                    raise DataError(f"{path / name}: {size} bytes, the manifest says {file.size}")
        self.dtype = np.dtype(self.manifest.dtype).newbyteorder("<")

    def shards(self, split: str) -> Iterator[tuple[Tokens, npt.NDArray[np.uint64]]]:
        """Yields each shard of train or val: its tokens, mapped, and each document's end offset in them."""
        for name, _ in self.manifest.bins(split):
            with storage_errors("map", self.path / name):
                yield (
                    _mapped(self.path / name, self.dtype),
                    _mapped(self.path / beside(name, "idx"), np.dtype("<u8")),
                )

    def rows(self, split: str) -> Iterator[npt.NDArray[np.uint64]]:
        """Yields, for each shard, the source row number of each document; nothing for an imported set."""
        for name, _ in self.manifest.bins(split) if not self.manifest.books.is_imported else ():
            with storage_errors("map", self.path / name):
                yield _mapped(self.path / beside(name, "row"), np.dtype("<u8"))

    def documents(self, split: str) -> Iterator[Tokens]:
        """Yields the tokens of each document in order with its end-of-text; a file where ends are unknown."""
        for tokens, ends in self.shards(split):
            start = 0
            for end in ends.tolist():
                yield tokens[start:end]
                start = end


def _mapped(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # a split without documents; an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def find_sets(path: Path) -> list[Path]:
    """Returns the directory itself if it is a set, whole or not, else every set below it, by name.

    Raises UsageError where the path is no directory.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; a shard set is one")
    entries = sorted(path.iterdir())
    if SET_NAME.fullmatch(path.resolve().name) or any(_SET_FILE.fullmatch(entry.name) for entry in entries):
        return [path]
    below = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return [found for entry in below for found in find_sets(entry)]
