"""Reads tokens made by other programs, checked against this vocabulary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.corpus.records.sources import SPLITS
from stoker.shards.exchange.import_source import Found, ImportRefused, TokenFile
from stoker.shards.format.identity import dtype_for
from stoker.shards.format.manifest import EndOfText
from stoker.store.errors import storage_errors
from stoker.store.files import opened

PIECE_TOKENS = 1 << 20

Tokens = npt.NDArray[Any]
Progress = Callable[[int], None]


def pieces(found: Found, split: str, vocab_size: int, progress: Progress) -> Iterator[Tokens]:
    """Yields a split's tokens in the order of its files; `progress` gets bytes.

    Raises ImportRefused, StorageError.
    """
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


def end_of_text(found: Found, vocab_size: int, eot: int, progress: Progress) -> EndOfText | None:
    """Returns the place of end-of-text, by the content alone: the same tokens must always make the same set.

    nanoGPT puts it after each document, its successors before; without any, documents are not known.
    """
    for split in SPLITS:
        first = last = None
        is_there = False
        for piece in pieces(found, split, vocab_size, progress):
            first, last = int(piece[0]) if first is None else first, int(piece[-1])
            is_there = is_there or bool((piece == eot).any())
            if is_there and first != eot:
                return "after"
        if is_there:
            return "after" if last == eot else "before"
    return None


def _read(file: TokenFile) -> Iterator[Tokens]:
    """Yields a file's tokens; raises ImportRefused if the file changed since it was found."""
    dtype = np.dtype(file.dtype).newbyteorder("<")
    digest = hashlib.sha256()
    with storage_errors("read", file.path), opened(file.path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        os.lseek(descriptor, file.offset, os.SEEK_SET)
        with open(descriptor, "rb", closefd=False) as stream:
            while data := stream.read(PIECE_TOKENS * dtype.itemsize):
                digest.update(data)
                if len(data) % dtype.itemsize == 0:
                    yield np.frombuffer(data, dtype)
        now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns):
        raise ImportRefused(f"{file.path}: it changed while it was read; import it when nothing writes to it")
    if file.sha256 not in (None, digest.hexdigest()):
        raise ImportRefused(f"{file.path}: its sha256 is not the one that was noted when it was exported")
