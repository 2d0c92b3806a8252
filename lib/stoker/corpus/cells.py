"""How the download watchdog's receipts and wishes go into the cells of packed mappings."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import get_args

from stoker.corpus.packed import Words, raw
from stoker.corpus.receipts import Receipt, ReceiptState
from stoker.corpus.wants import Wanted

_STATES: tuple[ReceiptState, ...] = get_args(ReceiptState)
_STATE_NUMBERS: Mapping[str, int] = {state: number for number, state in enumerate(_STATES, 1)}
_NO_SUM = 0x10  # a receipt of what never came may know none
_KINDS = ("", "sha256", "git", "url")  # of identities, and how many bytes their sums have
_SUM_BYTES = {"sha256": 32, "git": 20, "url": 32}
_SEEN = len(_KINDS)  # the etag of a folder's file: "<size>-<mtime_ns>-<inode>"
_NUMBERS = struct.Struct("<QQ")
_MOST = 2**63


class ReceiptCodec:
    """79 bytes; what files have in common (dataset, revision, the folder they lie in) is kept once."""

    _struct = struct.Struct("<BBxQI32s32s")
    width = _struct.size

    def __init__(self) -> None:
        self._frames: Words[tuple[str, str, str]] = Words()

    def pack(self, path: str, thing: Receipt) -> bytes | None:
        """Its cell; None for one that would not come out equal."""
        if thing.path != path or not thing.file.endswith(f"/{path}") or not 0 <= thing.size < _MOST:
            return None
        if thing.found:  # rare enough to be kept as it is
            return None
        sha256 = raw(thing.sha256, 32) if thing.sha256 else b""
        etag = _packed_etag(thing)
        if sha256 is None or etag is None:
            return None
        state = _STATE_NUMBERS[thing.state] | (0 if sha256 else _NO_SUM)
        frame = self._frames.number((thing.dataset, thing.revision, thing.file[: -len(path)]))
        return self._struct.pack(state, etag[0], thing.size, frame, sha256, etag[1])

    def unpack(self, path: str, cell: bytes) -> Receipt:
        """What was packed."""
        state, kind, size, frame, sha256, etag = self._struct.unpack(cell)
        dataset, revision, place = self._frames[frame]
        if kind == _SEEN:
            mtime_ns, inode = _NUMBERS.unpack_from(etag)
            word = f"{size}-{mtime_ns}-{inode}"
        else:
            word = _identity(kind, etag)
        return Receipt(
            dataset,
            path,
            f"{place}{path}",
            size,
            "" if state & _NO_SUM else sha256.hex(),
            revision,
            word,
            _STATES[(state & ~_NO_SUM) - 1],
        )


class WantedCodec:
    """46 bytes; of a URL that ends in its path the rest is kept once."""

    _struct = struct.Struct("<BBqI32s")
    width = _struct.size

    def __init__(self) -> None:
        self._places: Words[str] = Words()

    def pack(self, path: str, thing: Wanted) -> bytes | None:
        """Its cell; None for one that would not come out equal."""
        found = _packed_identity(thing.identity)
        size = -1 if thing.size is None else thing.size
        if thing.path != path or found is None or not -1 <= size < _MOST:
            return None
        ends_so = thing.url.endswith(path)
        place = self._places.number(thing.url[: -len(path)] if ends_so else thing.url)
        return self._struct.pack(found[0], ends_so, size, place, found[1])

    def unpack(self, path: str, cell: bytes) -> Wanted:
        """What was packed."""
        kind, ends_so, size, place, digest = self._struct.unpack(cell)
        url = self._places[place]
        return Wanted(
            path, None if size < 0 else size, _identity(kind, digest), url + path if ends_so else url
        )


def _packed_identity(identity: str) -> tuple[int, bytes] | None:
    kind, _, digits = identity.partition(":")
    size = _SUM_BYTES.get(kind)
    found = None if size is None else raw(digits, size)
    return None if found is None else (_KINDS.index(kind), found)


def _identity(kind: int, digest: bytes) -> str:
    name = _KINDS[kind]
    return f"{name}:{digest[: _SUM_BYTES[name]].hex()}"


def _packed_etag(receipt: Receipt) -> tuple[int, bytes] | None:
    if ":" in receipt.etag:
        return _packed_identity(receipt.etag)
    words = receipt.etag.split("-")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return None
    size, mtime_ns, inode = map(int, words)
    same = receipt.etag == f"{receipt.size}-{mtime_ns}-{inode}" and size == receipt.size
    return (_SEEN, _NUMBERS.pack(mtime_ns, inode)) if same and max(mtime_ns, inode) < _MOST else None
