"""Reads windows of tokens from shard sets: from the concatenated train (or val) streams of a segment's sets.

Window w = tokens [w * seq_len, w * seq_len + seq_len + 1) of that stream, across the ends of files and sets;
in a part of it, behind the part's first token.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.plan.log import Segment
from stoker.plan.permutation import permute
from stoker.store.errors import DataError
from stoker.store.record import parse_json, require_version

MOST_MAPS = 256  # a process may hold 65,530 maps (vm.max_map_count); a reader keeps far below
ORDER_BLOCK = 4096  # offsets permuted together: a call for one batch costs as much as one for a hundred

Windows: TypeAlias = npt.NDArray[np.int64]
_Dtype: TypeAlias = np.dtype[np.uint16] | np.dtype[np.uint32]
_Tokens: TypeAlias = npt.NDArray[Any]  # in the sets' own dtype
DTYPES: Mapping[str, _Dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclass(frozen=True)
class _File:
    path: Path
    tokens: int


@dataclass(frozen=True)
class _Map:
    memory: mmap.mmap
    tokens: _Tokens


class WindowReader:
    """Reads windows of (seq_len + 1) tokens from one stream of several shard sets, in the given order.

    Checks at open the sha256 of each manifest and the size of each token file, and raises DataError with the
    file's path. The supervisor proves the content of the files before a launch.
    """

    def __init__(
        self,
        sets: Sequence[tuple[str, str]],
        shards_root: Path,
        *,
        seq_len: int,
        vocab_size: int,
        stream: Literal["train", "val"] = "train",
        first: int = 0,
        most_maps: int = MOST_MAPS,
    ) -> None:
        manifests = [_manifest(shards_root / key[:16], digest) for key, digest in sets]
        names = {str(manifest.get("dtype")) for _, manifest in manifests}
        if len(names) != 1 or not names <= set(DTYPES):
            raise DataError(f"{shards_root}: the sets of a segment must share a known dtype: {names}")
        self.dtype: _Dtype = DTYPES[names.pop()]
        self.seq_len = seq_len
        self.vocab_size = vocab_size
        files = [_files(*found, stream, self.dtype.itemsize) for found in manifests]
        self.set_tokens = [sum(file.tokens for file in found) for found in files]
        self._files, self._first = [file for found in files for file in found], first
        self._starts = np.concatenate([[0], np.cumsum([file.tokens for file in self._files], dtype=np.int64)])
        self._bounds: list[int] = self._starts.tolist()
        self._map = lru_cache(max(1, most_maps))(self._opened)  # closes the least recently used map
        self.is_cold = True  # the kernel had to read the last windows from the disk

    @property
    def tokens(self) -> int:
        """The length of the stream in tokens."""
        return int(self._starts[-1])

    @property
    def windows(self) -> int:
        """The number of windows in the stream; each shares its last token with the next."""
        return max(0, (self.tokens - self._first - 1) // self.seq_len)

    def read(self, windows: npt.ArrayLike) -> Windows:
        """Returns the tokens of windows (B,), in their order, as int64 (B, seq_len + 1).

        Raises DataError for an id beyond the vocabulary, IndexError for a window beyond the stream.
        """
        wanted = np.asarray(windows, dtype=np.int64).reshape(-1)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.windows):
            raise IndexError(f"a window outside 0..{self.windows - 1} was asked for")
        batch: _Tokens = np.empty((wanted.size, self.seq_len + 1), dtype=self.dtype)
        starts = wanted * self.seq_len + self._first
        files = np.searchsorted(self._starts, starts, side="right") - 1
        places = list(zip(starts.tolist(), files.tolist(), strict=True))
        blocks_read = _blocks_read()
        if self.is_cold:  # advice costs as much as a warm read
            for start, number in places:
                self._advise(start, number)
        for row, (start, number) in zip(batch, places, strict=True):
            self._copy(row, start, number)
        self.is_cold = _blocks_read() > blocks_read
        self._check_vocabulary(batch, wanted)
        return np.asarray(batch, dtype=np.int64)

    def close(self) -> None:
        """Closes the maps."""
        self._map.cache_clear()

    def _copy(self, row: _Tokens, start: int, number: int) -> None:
        """Fills a row with the window at token `start` of the stream, which is in file `number`."""
        filled = 0
        while filled < len(row):
            inside = start + filled - self._bounds[number]
            part = self._map(number).tokens[inside : inside + len(row) - filled]
            row[filled : filled + len(part)] = part
            filled += len(part)
            number += 1

    def _advise(self, start: int, number: int) -> None:
        """Has the kernel begin to read the window at token `start`, so that a batch's reads overlap.

        Without the part of a window that lies in the next file: few windows have one.
        """
        size, memory = self.dtype.itemsize, self._map(number).memory
        first = (start - self._bounds[number]) * size
        begin = first - first % mmap.PAGESIZE
        memory.madvise(mmap.MADV_WILLNEED, begin, min(first + (self.seq_len + 1) * size, len(memory)) - begin)

    def _opened(self, number: int) -> _Map:
        with self._files[number].path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        memory.madvise(mmap.MADV_RANDOM)  # what lies around a window is not needed with it
        return _Map(memory, np.frombuffer(memory, dtype=self.dtype))

    def _check_vocabulary(self, batch: _Tokens, wanted: Windows) -> None:
        if not batch.size or int(batch.max()) < self.vocab_size:
            return
        row, column = np.argwhere(batch >= self.vocab_size)[0]
        token = int(wanted[row]) * self.seq_len + self._first + int(column)
        number = int(np.searchsorted(self._starts, token, side="right")) - 1
        raise DataError(
            f"{self._files[number].path}: token {token - int(self._starts[number])} is "
            f"{int(batch[row, column])}, beyond the vocabulary of {self.vocab_size}; prove this shard set "
            "(stoker verify shards) and have it restored"
        )


class SegmentReader(WindowReader):
    """Reads the windows of a plan entry in the plan's order."""

    def __init__(
        self, segment: Segment, shards_root: Path, *, vocab_size: int, most_maps: int = MOST_MAPS
    ) -> None:
        super().__init__(
            segment.sets,
            shards_root,
            seq_len=segment.seq_len,
            vocab_size=vocab_size,
            most_maps=most_maps,
            first=segment.first,
        )
        self.segment = segment
        if misfit := segment.misfit(self.set_tokens):
            raise DataError(f"plan entry {segment.n} has {misfit}, in {shards_root}")
        self._order = lru_cache(2)(self._block)

    def at_offsets(self, offsets: range | npt.ArrayLike) -> Windows:
        """Returns the tokens of the windows at offsets (B,) of the plan entry, as int64 (B, seq_len + 1)."""
        wanted = np.asarray(offsets, dtype=np.int64)
        blocks = wanted // ORDER_BLOCK
        windows = np.empty_like(wanted)
        for block in np.unique(blocks).tolist():
            inside = blocks == block
            windows[inside] = self._order(block)[wanted[inside] - block * ORDER_BLOCK]
        return self.read(windows)

    def _block(self, number: int) -> Windows:
        """Returns the windows at a block of offsets of the plan entry."""
        last = min((number + 1) * ORDER_BLOCK, self.segment.windows)
        return permute(self.segment.key, self.segment.windows, np.arange(number * ORDER_BLOCK, last))


def _blocks_read() -> int:
    """Returns the blocks of a disk that the kernel has read for this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def _manifest(directory: Path, digest: str) -> tuple[Path, Mapping[str, Any]]:
    path = directory / "manifest.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError as problem:
        raise DataError(f"{path} is not there, but the plan names its shard set") from problem
    found = hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise DataError(f"{path} has sha256 {found}, the plan names {digest}")
    try:
        manifest = parse_json(raw)
        require_version(manifest, path)
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{path}: {problem!r}") from problem
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise DataError(f"{path} lists no files")
    return directory, manifest


def _files(directory: Path, manifest: Mapping[str, Any], stream: str, itemsize: int) -> list[_File]:
    pattern = re.compile(rf"{stream}-\d{{5}}\.bin")
    files: list[_File] = []
    for name in sorted(name for name in manifest["files"] if pattern.fullmatch(name)):
        path, tokens = directory / name, manifest["files"][name]["tokens"]
        try:
            size = path.stat().st_size
        except FileNotFoundError as problem:
            raise DataError(f"{path} is not there, but its manifest lists it") from problem
        if size != tokens * itemsize:
            raise DataError(f"{path} has {size} bytes; its manifest says {tokens} tokens of {itemsize} bytes")
        if tokens:
            files.append(_File(path, tokens))
    return files
