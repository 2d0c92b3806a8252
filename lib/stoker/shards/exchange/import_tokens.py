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

    def see(self, piece: Tokens, eot: int) -> None:
        """Go on with the next tokens."""
        self.digest.update(piece.data)
        self.tokens += piece.size
        self.ends += int(np.count_nonzero(piece == eot))
        if piece.size:
            self.first = int(piece[0]) if self.first is None else self.first
            self.last = int(piece[-1])


@dataclass(frozen=True)
class Survey:
    """What a place holds. `sha256` names the content, whatever files it lies in: same tokens, same set.

    `size` is in bytes as a set has them; `end_of_text` tells where it stands, None where there is none.
    """

    sha256: str
    size: int
    tokens: dict[str, int]
    end_of_text: EndOfText | None


def survey(found: Found, *, vocab_size: int, eot: int, progress: Progress) -> Survey:
    """Read everything once; `progress` is told bytes. Raises ImportRefused, StorageError."""
    streams = {split: Stream() for split in SPLITS}
    for split, piece in pieces(found, vocab_size, progress):
        streams[split].see(piece, eot)
    return conclude(streams, eot=eot, dtype=dtype_for(vocab_size))


def conclude(streams: dict[str, Stream], *, eot: int, dtype: str) -> Survey:
    """What the streams are, from what was seen of them."""
    hashes = {split: stream.digest.hexdigest() for split, stream in streams.items()}
    identity = {"import": 1, "dtype": dtype, **hashes}
    tokens = {split: stream.tokens for split, stream in streams.items()}
    return Survey(
        sha256=hashlib.sha256(canonical_json(identity)).hexdigest(),
        size=sum(tokens.values()) * TOKEN_BYTES[dtype],
        tokens=tokens,
        end_of_text=_end_of_text(streams, eot),
    )


def pieces(found: Found, vocab_size: int, progress: Progress) -> Iterator[tuple[str, Tokens]]:
    """Every file's tokens in order, as a set of this vocabulary has them, with their split."""
    dtype = np.dtype(dtype_for(vocab_size)).newbyteorder("<")
    done = 0
    for file in found.files:
        place = 0
        for piece in _read(file):
            if piece.size and (most := int(piece.max())) >= vocab_size:
                at = place + int(np.argmax(piece >= vocab_size))
                raise ImportRefused(
                    f"{file.path}: token {at} is id {int(piece[at - place])}, the tokenizer has {vocab_size} "
                    f"ids (near by is {most}): another one made it, or it is no file of {file.dtype}"
                )
            place += piece.size
            done += piece.nbytes
            progress(done)
            yield file.split, piece.astype(dtype, copy=False)


def _read(file: TokenFile) -> Iterator[Tokens]:
    """A file's tokens; it must be the same from the first byte to the last."""
    dtype = np.dtype(file.dtype).newbyteorder("<")
    digest = hashlib.sha256()
    with storage_errors("read", file.path), opened(file.path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        before = os.fstat(descriptor)
        if before.st_size != file.offset + file.tokens * dtype.itemsize:
            raise ImportRefused(
                f"{file.path}: its size changed while it was read; import it when it is at rest"
            )
        for first in range(0, file.tokens, PIECE_TOKENS):
            count = min(PIECE_TOKENS, file.tokens - first)
            data = bytearray(count * dtype.itemsize)
            view, at = memoryview(data), file.offset + first * dtype.itemsize
            while view and (got := os.preadv(descriptor, [view], at)):
                view, at = view[got:], at + got
            if view:
                raise ImportRefused(f"{file.path}: it ends at byte {at}; import it when it is at rest")
            digest.update(data)
            yield np.frombuffer(data, dtype)
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ImportRefused(f"{file.path}: it changed while it was read; import it when it is at rest")
    if file.sha256 not in (None, digest.hexdigest()):
        raise ImportRefused(f"{file.path}: its sha256 is not the one that was noted when it was exported")


def _end_of_text(streams: dict[str, Stream], eot: int) -> EndOfText | None:
    """Where end-of-text stands, by the content alone: the same tokens must make the same set, ever.

    nanoGPT puts it after each document, its successors before; with none at all documents are not known.
    """
    if not any(stream.ends for stream in streams.values()):
        return None
    tells = next(stream for stream in streams.values() if stream.ends)
    return "before" if tells.first == eot and tells.last != eot else "after"
