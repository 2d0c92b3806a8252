"""Tokens of others, read and checked: two passes over the same files, the first of which writes nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.shards.exchange.import_source import Found, ImportRefused, TokenFile
from stoker.shards.format.identity import dtype_for
from stoker.shards.format.manifest import SPLITS, TOKEN_BYTES, EndOfText
from stoker.store.errors import storage_errors
from stoker.store.files import canonical_json, opened

PIECE_TOKENS = 1 << 20

Tokens = npt.NDArray[Any]
Progress = Callable[[int], None]


@dataclass
class Stream:
    """What was seen of a split: its bytes as a set has them, hashed, its length, and its ends of text."""

    digest: Any = field(default_factory=hashlib.sha256)
    tokens: int = 0
    ends: int = 0
    first: int | None = None
    last: int | None = None

    def see(self, pieces: Iterator[Tokens], eot: int) -> Iterator[Tokens]:
        """The pieces as they pass by."""
        for piece in pieces:
            self.digest.update(piece.data)
            self.tokens += piece.size
            self.ends += int(np.count_nonzero(piece == eot))
            self.first = int(piece[0]) if self.first is None else self.first
            self.last = int(piece[-1])
            yield piece


@dataclass(frozen=True)
class Survey:
    """What a place holds. `sha256` names the content, whatever files it lies in: same tokens, same set.

    `size` is in bytes as a set has them; `end_of_text` says where it is, None where there is none.
    """

    sha256: str
    size: int
    tokens: dict[str, int]
    end_of_text: EndOfText | None


def survey(found: Found, *, vocab_size: int, eot: int, progress: Progress) -> Survey:
    """Read everything once; `progress` gets bytes. Raises ImportRefused, StorageError."""
    streams = {split: Stream() for split in SPLITS}
    for split, stream in streams.items():
        for _ in stream.see(pieces(found, split, vocab_size, progress), eot):
            pass
    return conclude(streams, eot=eot, dtype=dtype_for(vocab_size))


def conclude(streams: dict[str, Stream], *, eot: int, dtype: str) -> Survey:
    """What the streams are, from what was seen of them."""
    hashes = {split: stream.digest.hexdigest() for split, stream in streams.items()}
    tokens = {split: stream.tokens for split, stream in streams.items()}
    return Survey(
        sha256=hashlib.sha256(canonical_json({"import": 1, "dtype": dtype, **hashes})).hexdigest(),
        size=sum(tokens.values()) * TOKEN_BYTES[dtype],
        tokens=tokens,
        end_of_text=_end_of_text(streams, eot),
    )


def pieces(found: Found, split: str, vocab_size: int, progress: Progress) -> Iterator[Tokens]:
    """A split's tokens in the order of its files, as a set of this vocabulary has them."""
    dtype = np.dtype(dtype_for(vocab_size)).newbyteorder("<")
    done = 0
    for file in found.files:
        place = 0
        for piece in _read(file) if file.split == split else ():
            if int(piece.max()) >= vocab_size:
                at = int(np.argmax(piece >= vocab_size))
                raise ImportRefused(
                    f"{file.path}: token {place + at} is id {int(piece[at])}, the tokenizer has {vocab_size} "
                    f"ids: another one made it, or it is no file of {file.dtype}"
                )
            place += piece.size
            done += piece.nbytes
            progress(done)
            yield piece.astype(dtype, copy=False)


def _read(file: TokenFile) -> Iterator[Tokens]:
    """A file's tokens; it must be the same from the first byte to the last."""
    dtype = np.dtype(file.dtype).newbyteorder("<")
    digest = hashlib.sha256()
    changed = ImportRefused(f"{file.path}: it changed while it was read; import it when nothing writes to it")
    with storage_errors("read", file.path), opened(file.path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        before = os.fstat(descriptor)
        if before.st_size != file.offset + file.tokens * dtype.itemsize:
            raise changed
        for first in range(0, file.tokens, PIECE_TOKENS):
            data = bytearray(min(PIECE_TOKENS, file.tokens - first) * dtype.itemsize)
            view, at = memoryview(data), file.offset + first * dtype.itemsize
            while view and (got := os.preadv(descriptor, [view], at)):
                view, at = view[got:], at + got
            if view:
                raise changed
            digest.update(data)
            yield np.frombuffer(data, dtype)
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed
    if file.sha256 not in (None, digest.hexdigest()):
        raise ImportRefused(f"{file.path}: its sha256 is not the one that was noted when it was exported")


def _end_of_text(streams: dict[str, Stream], eot: int) -> EndOfText | None:
    """Where end-of-text is, by the content alone: the same tokens must make the same set, ever.

    nanoGPT puts it after each document, its successors before; with none at all documents are not known.
    """
    with_ends = next((stream for stream in streams.values() if stream.ends), None)
    if with_ends is None:
        return None
    return "before" if with_ends.first == eot and with_ends.last != eot else "after"
