"""The data files of a set being built: append-only, cut into shards at document boundaries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.corpus.records.sources import SPLITS
from stoker.shards.format.manifest import KINDS, OFFSET_BYTES, TOKEN_BYTES, data_name
from stoker.store.errors import storage_errors
from stoker.store.files import fsync_dir, opened, write_all

_CHUNK = 1 << 20
BLOCK = 4096  # in which file systems allocate


class GrowingFile:
    """One file, open for appending behind its `length` bytes; `written` is the xxh3_128 of all its bytes.

    The bytes read back must have the same hash; the sha256 in the manifest is that of the bytes read back.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length
        self.written = xxhash.xxh3_128()
        self.finished = False
        with storage_errors("open", path):
            if length:
                self._read_kept()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self.descriptor = os.open(path, flags, 0o640)

    def append(self, data: npt.NDArray[Any]) -> None:
        """Writes an array's bytes to the kernel; they are durable after the next commit."""
        view = data.data.cast("B")
        with storage_errors("append to", self.path):
            write_all(self.descriptor, view)
        self.written.update(view)
        self.length += len(view)

    def make_durable(self, *, close: bool) -> None:
        """Forces the bytes to disk; the bytes of a closed file are there already."""
        if self.descriptor < 0:
            return
        with storage_errors("sync", self.path):
            os.fdatasync(self.descriptor)
            if close:
                self.close()

    def close(self) -> None:
        """Closes the file; bytes that are not durable yet may be lost."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _read_kept(self) -> None:
        with opened(self.path, os.O_RDONLY) as descriptor:
            while piece := os.read(descriptor, _CHUNK):
                self.written.update(piece)


class Shard(NamedTuple):
    """The files of one shard: tokens, the end offset of each document, its row number in the source."""

    tokens: GrowingFile
    ends: GrowingFile
    rows: GrowingFile


class Split:
    """The shards of train or val, in writing.

    A new shard begins when the current one has a document and the next document would exceed `shard_tokens`;
    so the cut depends on the documents alone, not on how they arrive.
    """

    def __init__(
        self, directory: Path, split: str, dtype: str, shard_tokens: int, lengths: dict[str, int]
    ) -> None:
        self._directory = directory
        self._split = split
        self._token_bytes = TOKEN_BYTES[dtype]
        self._shard_tokens = shard_tokens
        self.files: list[Shard] = []
        while not self.files or self._name("bin") in lengths:
            self._open_shard(lengths)

    def append(
        self,
        tokens: npt.NDArray[np.generic],
        lengths: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Appends documents: their tokens back to back with end-of-text, each one's length and row number."""
        ends = np.cumsum(lengths)
        first = 0
        while first < len(lengths):
            done = int(ends[first - 1]) if first else 0
            shard = self.files[-1]
            held = shard.tokens.length // self._token_bytes
            stop = int(np.searchsorted(ends, done + self._shard_tokens - held, side="right"))
            if stop <= first:
                if held:
                    self._open_shard({})
                    continue
                stop = first + 1  # a document larger than a shard gets its own shard
            shard.tokens.append(tokens[done : int(ends[stop - 1])])
            shard.ends.append((ends[first:stop] - done + held).astype("<u8"))
            shard.rows.append(rows[first:stop].astype("<u8"))
            first = stop

    def _name(self, kind: str) -> str:
        return data_name(self._split, len(self.files), kind)

    def _open_shard(self, lengths: dict[str, int]) -> None:
        names = [self._name(kind) for kind in KINDS]
        shard = Shard(*(GrowingFile(self._directory / name, lengths.get(name, 0)) for name in names))
        fsync_dir(self._directory)  # a commit may name only files whose directory entries are durable
        for file in self.files[-1] if self.files else ():
            file.finished = True
        self.files.append(shard)


class GrowingSet:
    """Both splits of a set in its building directory, continued at the given lengths."""

    def __init__(self, directory: Path, dtype: str, shard_tokens: int, lengths: dict[str, int]) -> None:
        self._token_bytes = TOKEN_BYTES[dtype]
        self.splits = {split: Split(directory, split, dtype, shard_tokens, lengths) for split in SPLITS}

    @property
    def files(self) -> Iterable[GrowingFile]:
        return (file for split in self.splits.values() for shard in split.files for file in shard)

    @property
    def disk_bytes(self) -> int:
        """An upper bound of the set's bytes on disk, with the unused ends of blocks."""
        return sum(file.length + BLOCK for file in self.files)

    def close(self) -> None:
        """Closes every file: a worker may build more than one set."""
        for file in self.files:
            file.close()

    def lengths(self) -> dict[str, int]:
        """Returns every file's length in bytes."""
        return {file.path.name: file.length for file in self.files}

    def unsettled(self) -> list[tuple[GrowingFile, bool]]:
        """Returns the files that may hold bytes not yet durable, and whether each is finished.

        The appending thread decides that now: the committing thread must not close a file which another
        commit has yet to sync.
        """
        return [(file, file.finished) for file in self.files if file.descriptor >= 0]

    def data_files(self) -> Iterator[tuple[GrowingFile, int | None, int | None]]:
        """Yields every file, and for a .bin its tokens and documents."""
        for split in self.splits.values():
            for shard in split.files:
                documents = shard.ends.length // OFFSET_BYTES
                yield shard.tokens, shard.tokens.length // self._token_bytes, documents
                yield shard.ends, None, None
                yield shard.rows, None, None
