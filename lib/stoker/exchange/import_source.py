"""Recognises and reads tokens made by other programs: their files, and what notes say about them.

Two forms are known. *predecessor*: {train,val}_%06d.bin without header, and a manifest.json that counts them.
*nanogpt*: .bin files with train or val in their names, raw or behind a header of 256 int32; claims of a
meta.json that `stoker export` wrote are checked. Every other form is refused, with the reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stoker.corpus.records.sources import SPLITS
from stoker.shards.format.identity import dtype_for
from stoker.shards.format.manifest import SUMS, TOKEN_BYTES, EndOfText
from stoker.store.errors import DataError, storage_errors
from stoker.store.files import opened
from stoker.store.record import parse_json

PREDECESSOR_MANIFEST, EXPORT_NOTE = "manifest.json", "meta.json"
HEADER_BYTES = 1024
# (magic, version): token type. From llm.c, and used by other programs too: for GPT-2 and for Llama 3.
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
LEAST_HASH_DIGITS = 16
PIECE_TOKENS = 1 << 20

Tokens = npt.NDArray[Any]
Progress = Callable[[int], None]

_SPLIT = re.compile(r"(?<![a-z])(train|val)(?![a-z])")
_PREDECESSOR_FILE = re.compile(r"(train|val)_\d{6,}\.bin")


class ImportRefused(DataError):
    """Raised for tokens that cannot be imported; the message says why and what to do."""


@dataclass(frozen=True)
class TokenFile:
    """One file: `dtype` of its tokens behind `offset` bytes; a sha256 if a note beside it gives one."""

    path: Path
    split: str
    dtype: str
    tokens: int
    size: int
    mtime_ns: int
    offset: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Found:
    """The files of a place in order."""

    form: Literal["predecessor", "nanogpt"]
    files: tuple[TokenFile, ...]
    tokenizer: str | None = None  # the hash that the place gives
    notes: tuple[str, ...] = field(default=())  # on files that were passed over


def look_at(place: Path, dtype: str) -> Found:
    """Recognises the files of a place; raw nanoGPT files have `dtype`. Raises ImportRefused, OSError."""
    if not os.path.lexists(place):
        raise ImportRefused(f"{place}: not there")
    if not place.is_dir():
        return Found("nanogpt", (_nanogpt_file(place, dtype, {}),))
    names = sorted(entry.name for entry in place.iterdir())
    if SUMS in names:
        raise ImportRefused(f"{place}: a shard set of Stoker's own; `stoker export` it, and import that")
    counted = PREDECESSOR_MANIFEST in names
    found = _predecessor(place, names) if counted else _nanogpt(place, names, dtype)
    if not any(file.tokens for file in found.files):
        raise ImportRefused(f"{place}: no tokens in it")
    return found


def tokenizer_refusal(pinned: str, said: str | None, stated: str | None, *, trusted: bool) -> str | None:
    """Returns why the tokens may not pass as the pinned tokenizer's (its sha256), None where they may.

    `said` is the hash that their place gives, `stated` the operator's; `trusted`: the operator vouches.
    """
    if trusted:
        return None
    if stated is not None and stated.lower() != pinned:
        return f"they are stated to be of tokenizer {stated}, this pipeline's is {pinned}"
    if said is not None and not (len(said) >= LEAST_HASH_DIGITS and pinned.startswith(said.lower())):
        return (
            f"their place says tokenizer {said}, this pipeline's is {pinned}; if it is the same one by "
            "another hash, say --trust-tokenizer"
        )
    if said is None and stated is None:
        return (
            f"their place does not say which tokenizer made them; if it is this pipeline's, say "
            f"--tokenizer-sha256 {pinned} (its tokenizer.json has that), or --trust-tokenizer"
        )
    return None


def _predecessor(place: Path, names: list[str]) -> Found:
    where = place / PREDECESSOR_MANIFEST
    body = _note(where)
    files: list[TokenFile] = []
    try:
        for split in SPLITS:
            fields = body.get(split) or {"total_tokens": 0, "shards": []}
            mine = [_shard(place, split, str(one["path"]), int(one["tokens"])) for one in fields["shards"]]
            if (total := sum(file.tokens for file in mine)) != fields["total_tokens"]:
                raise ImportRefused(
                    f"{where}: {split}.total_tokens is {fields['total_tokens']}, its shards have {total}"
                )
            files += mine
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ImportRefused(f"{where}: not a manifest of token shards: {error!r}") from error
    listed = {file.path.name for file in files}
    if len(listed) != len(files):
        raise ImportRefused(f"{where}: names a shard twice")
    spare = [name for name in names if name.endswith(".bin") and name not in listed]
    notes = (f"{len(spare)} .bin files that {where.name} does not name: {spare[0]}",) if spare else ()
    return Found("predecessor", tuple(files), body.get("tokenizer_hash"), notes)


def _shard(place: Path, split: str, stated: str, tokens: int) -> TokenFile:
    """Returns a shard by the last part of its path: shards are moved, so the directories prove nothing."""
    name = stated.rpartition("/")[2]
    match = _PREDECESSOR_FILE.fullmatch(name)
    if match is None or match[1] != split:
        raise ImportRefused(f"{place / PREDECESSOR_MANIFEST}: {stated!r} is no name of a shard of {split}")
    found = _stat(place / name)
    size = found.st_size
    dtype = next((dtype for dtype, width in TOKEN_BYTES.items() if size == tokens * width), None)
    if dtype is None:
        raise ImportRefused(
            f"{place / name}: {size} bytes cannot hold the {tokens} tokens that the manifest says"
        )
    return TokenFile(place / name, split, dtype, tokens, size, found.st_mtime_ns)


def _nanogpt(place: Path, names: list[str], dtype: str) -> Found:
    note = _note(place / EXPORT_NOTE) if EXPORT_NOTE in names else {}
    if note.get("format") != "nanogpt" or note.get("dtype") not in TOKEN_BYTES:
        note = {"dtype": dtype}  # another program's meta.json is no evidence
    bins = [name for name in names if name.endswith(".bin")]
    if not bins:
        raise ImportRefused(f"{place}: no {PREDECESSOR_MANIFEST} and no .bin file; is this the directory?")
    fields = note.get("files", {})
    files = [_nanogpt_file(place / name, note["dtype"], fields.get(name, {})) for name in bins]
    if missing := sorted(set(fields) - set(bins)):
        raise ImportRefused(f"{place / missing[0]}: missing, {EXPORT_NOTE} names it")
    ordered = tuple(file for split in SPLITS for file in files if file.split == split)
    return Found("nanogpt", ordered, note.get("tokenizer_sha256"))


def _nanogpt_file(path: Path, dtype: str, fields: Mapping[str, Any]) -> TokenFile:
    splits = set(_SPLIT.findall(path.name.lower()))
    if not path.name.endswith(".bin") or len(splits) != 1:
        raise ImportRefused(f"{path}: neither train nor val is in its name; call it train.bin, say")
    split, found = splits.pop(), _stat(path)
    size = found.st_size
    header = _header(path, size)
    if header is not None:
        return TokenFile(path, split, *header, size, found.st_mtime_ns, offset=HEADER_BYTES)
    tokens, rest = divmod(size, TOKEN_BYTES[dtype])
    if rest:
        raise ImportRefused(
            f"{path}: {size} bytes are no whole number of {dtype}; it is truncated, or another kind"
        )
    if fields and (fields.get("size"), fields.get("tokens")) != (size, tokens):
        raise ImportRefused(
            f"{path}: {tokens} tokens in {size} bytes, {EXPORT_NOTE} says otherwise: {fields}"
        )
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
        raise ImportRefused(f"{path}: its header has version {version}, which is not known here")
    if tokens < 0 or size != HEADER_BYTES + tokens * TOKEN_BYTES[dtype]:
        raise ImportRefused(
            f"{path}: {size} bytes, its header says {tokens} tokens of {dtype}; it is truncated"
        )
    return dtype, tokens


def _note(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file beside the tokens."""
    _stat(path)
    with storage_errors("read", path):
        data = path.read_bytes()
    try:
        body = parse_json(data)
    except ValueError as error:
        raise ImportRefused(f"{path}: does not parse: {error}") from error
    if not isinstance(body, dict):
        raise ImportRefused(f"{path}: no object of JSON")
    return body


def _stat(path: Path) -> os.stat_result:
    """Returns the stat of a regular file; refuses a link, which may lead anywhere."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise ImportRefused(f"{path}: missing") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise ImportRefused(f"{path}: {kind}; put the file itself there")
    return found


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
