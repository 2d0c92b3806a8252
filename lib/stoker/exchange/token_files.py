"""Recognises and reads raw token files made by other programs, and what notes beside them say.

Two forms are known. *predecessor*: {train,val}_%06d.bin without header, and a manifest.json that counts them.
*nanogpt*: .bin files with train or val in their names, raw or behind a header of 256 int32; claims of a
meta.json that `stoker data export` wrote are checked. Every other form is refused, with the reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from stoker.corpus.records.sources import SPLITS
from stoker.exchange.token_stream import Piece, TokenFiles
from stoker.shards.format.manifest import SUMS, TOKEN_BYTES
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stoker.store.record import parse_json

PREDECESSOR_MANIFEST, EXPORT_NOTE = "manifest.json", "meta.json"
HEADER_BYTES = 1024
# (magic, version): token type. From llm.c, and used by other programs too: for GPT-2 and for Llama 3.
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
LEAST_HASH_DIGITS = 16
PIECE_TOKENS = 1 << 20

# Files, the hash of their tokenizer where their place gives one, and notes on files that are passed over.
Listed = tuple[list["TokenFile"], str | None, tuple[str, ...]]

_SPLIT = re.compile(r"(?<![a-z])(train|val)(?![a-z])")
_PREDECESSOR_FILE = re.compile(r"(train|val)_\d{6,}\.bin")


@dataclass(frozen=True)
class TokenFile:
    """`dtype` of its tokens behind `offset` bytes; a sha256 if a note beside it gives one."""

    path: Path
    split: str
    dtype: str
    tokens: int
    size: int
    mtime_ns: int
    offset: int = 0
    sha256: str | None = None

    def pieces(self) -> Iterator[Piece]:
        """Yields its tokens in order; raises DataError if the file changed since it was found."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        digest, first = hashlib.sha256(), 0
        with storage_errors("read", self.path), opened(self.path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
            os.lseek(descriptor, self.offset, os.SEEK_SET)
            with open(descriptor, "rb", closefd=False) as stream:
                while data := stream.read(PIECE_TOKENS * dtype.itemsize):
                    digest.update(data)
                    if len(data) % dtype.itemsize == 0:  # else it changed, as is seen below
                        yield Piece(self.path, np.frombuffer(data, dtype), first)
                        first += len(data) // dtype.itemsize
            unchanged(self.path, descriptor, self.size, self.mtime_ns)
        if self.sha256 not in (None, digest.hexdigest()):
            raise DataError(f"{self.path}: its sha256 is not the one that was noted when it was exported")


def find_token_files(place: Path, split: str, dtype: str) -> TokenFiles:
    """Returns the files of a split, or the one file that is the place; raw nanoGPT files have `dtype`.

    Raises DataError, OSError.
    """
    if not place.is_dir():
        return TokenFiles((_nanogpt_file(place, dtype, {}),))
    names = sorted(entry.name for entry in place.iterdir())
    if SUMS in names:
        raise DataError(f"{place}: a shard set of Stoker's own; `stoker data export` it, and import that")
    read = _predecessor if PREDECESSOR_MANIFEST in names else partial(_nanogpt, dtype=dtype)
    files, tokenizer, notes = read(place, names)
    taken = tuple(file for file in files if split in ("all", file.split))
    left_out = tuple(f"{file.path}: passed over by --split {split}" for file in files if file not in taken)
    return TokenFiles(taken, tokenizer, (*notes, *left_out))


def is_of(tokenizer: str, said: str | None) -> bool:
    """Whether what a place says of its tokenizer, if anything, is the beginning of this sha256."""
    return said is None or (len(said) >= LEAST_HASH_DIGITS and tokenizer.startswith(said.lower()))


def _predecessor(place: Path, names: list[str]) -> Listed:
    where = place / PREDECESSOR_MANIFEST
    body = read_note(where)
    files: list[TokenFile] = []
    try:
        for split in SPLITS:
            fields = body.get(split) or {"total_tokens": 0, "shards": []}
            mine = [_shard(place, split, str(one["path"]), int(one["tokens"])) for one in fields["shards"]]
            if (total := sum(file.tokens for file in mine)) != fields["total_tokens"]:
                raise DataError(
                    f"{where}: {split}.total_tokens is {fields['total_tokens']}, its shards have {total}"
                )
            files += mine
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not a manifest of token shards: {error!r}") from error
    listed = {file.path.name for file in files}
    if len(listed) != len(files):
        raise DataError(f"{where}: names a shard twice")
    spare = [name for name in names if name.endswith(".bin") and name not in listed]
    notes = (f"{len(spare)} .bin files that {where.name} does not name: {spare[0]}",) if spare else ()
    return files, body.get("tokenizer_hash"), notes


def _shard(place: Path, split: str, stated: str, tokens: int) -> TokenFile:
    """Returns a shard by the last part of its path: shards are moved, so the directories prove nothing."""
    name = stated.rpartition("/")[2]
    match = _PREDECESSOR_FILE.fullmatch(name)
    if match is None or match[1] != split:
        raise DataError(f"{place / PREDECESSOR_MANIFEST}: {stated!r} is no name of a shard of {split}")
    found = plain_stat(place / name)
    size = found.st_size
    dtype = next((dtype for dtype, width in TOKEN_BYTES.items() if size == tokens * width), None)
    if dtype is None:
        raise DataError(
            f"{place / name}: {size} bytes cannot hold the {tokens} tokens that the manifest says"
        )
    return TokenFile(place / name, split, dtype, tokens, size, found.st_mtime_ns)


def _nanogpt(place: Path, names: list[str], dtype: str) -> Listed:
    note = read_note(place / EXPORT_NOTE) if EXPORT_NOTE in names else {}
    if note.get("format") != "nanogpt" or note.get("dtype") not in TOKEN_BYTES:
        note = {"dtype": dtype}  # another program's meta.json is no evidence
    bins = [name for name in names if name.endswith(".bin")]
    if not bins:
        raise DataError(
            f"{place}: no {PREDECESSOR_MANIFEST}, state.json or .bin file; is this the directory?"
        )
    fields = note.get("files", {})
    files = [_nanogpt_file(place / name, note["dtype"], fields.get(name, {})) for name in bins]
    if missing := sorted(set(fields) - set(bins)):
        raise DataError(f"{place / missing[0]}: missing, {EXPORT_NOTE} names it")
    return sorted(files, key=attrgetter("split")), note.get("tokenizer_sha256"), ()


def _nanogpt_file(path: Path, dtype: str, fields: Mapping[str, Any]) -> TokenFile:
    split = "val" if set(_SPLIT.findall(path.name.lower())) == {"val"} else "train"
    found = plain_stat(path)
    size = found.st_size
    header = _header(path, size)
    if header is not None:
        return TokenFile(path, split, *header, size, found.st_mtime_ns, offset=HEADER_BYTES)
    tokens, rest = divmod(size, TOKEN_BYTES[dtype])
    if rest:
        raise DataError(
            f"{path}: {size} bytes are no whole number of {dtype}; it is truncated, or another kind"
        )
    if fields and (fields.get("size"), fields.get("tokens")) != (size, tokens):
        raise DataError(f"{path}: {tokens} tokens in {size} bytes, {EXPORT_NOTE} says otherwise: {fields}")
    return TokenFile(path, split, dtype, tokens, size, found.st_mtime_ns, sha256=fields.get("sha256"))


def _header(path: Path, size: int) -> tuple[str, int] | None:
    """Returns token type and count by the header, None where there is none; refuses a wrong header."""
    with storage_errors("read", path), opened(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
        head = os.pread(descriptor, 12, 0)
    magic, version, tokens = struct.unpack("<3i", head.ljust(12, b"\0"))
    if magic not in {known for known, _ in HEADERS}:
        return None
    dtype = HEADERS.get((magic, version))
    if dtype is None:
        raise DataError(f"{path}: its header has version {version}, which is not known here")
    if tokens < 0 or size != HEADER_BYTES + tokens * TOKEN_BYTES[dtype]:
        raise DataError(f"{path}: {size} bytes, its header says {tokens} tokens of {dtype}; it is truncated")
    return dtype, tokens


def read_note(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file beside the tokens."""
    plain_stat(path)
    with storage_errors("read", path):
        data = path.read_bytes()
    try:
        body = parse_json(data)
    except ValueError as error:
        raise DataError(f"{path}: does not parse: {error}") from error
    if not isinstance(body, dict):
        raise DataError(f"{path}: no object of JSON")
    return body


def plain_stat(path: Path) -> os.stat_result:
    """Returns the stat of a regular file; refuses a link, which may lead anywhere."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise DataError(f"{path}: {kind}; put the file itself there")
    return found


def unchanged(path: Path, descriptor: int, size: int, mtime_ns: int) -> None:
    """Raises DataError if the file is another than was found."""
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (size, mtime_ns):
        raise DataError(f"{path}: it changed while it was read; import it when nothing writes to it")
