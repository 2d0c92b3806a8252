"""Records: one JSON object per file, with `v` (format version) and `sum` (hash of the other fields).

JSON from disk is parsed within limits on its size and depth.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import secrets
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stoker.store.errors import DataError, UnknownFormat, storage_errors
from stoker.store.files import canonical_json, make_dir, move_durably, remove_tree, write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SUM_HEX = 16
VERSION = 1  # `v` of every record, manifest, checkpoint.json and line of a log
MOST_BYTES = 64 << 20  # the largest valid file, a listing or a line of the plan, has a few MB
# The interpreter raises RecursionError at 1,000 frames, at any place in the code. The lower limit makes sure
# that a value that was parsed can also be walked, sent to a daemon and written again.
MOST_DEPTH = 64


class RecordDamaged(DataError):
    """A record does not parse, or its content does not match its `sum`."""


def write_record(path: Path, body: Mapping[str, Any]) -> None:
    """Writes a record durably; raises ValueError when the body lacks `v` or has no JSON form."""
    if "v" not in body:
        raise ValueError(f"the record {path} lacks its format version `v`")
    # Through JSON and back first: as keys, 1 and "1" sort differently until both are text.
    plain = parse_json(canonical_json({key: value for key, value in body.items() if key != "sum"}))
    write_atomic(path, canonical_json({**plain, "sum": _sum(plain)}) + b"\n")


def read_record(path: Path) -> dict[str, Any]:
    """Reads a record's body (without `sum`); raises as parse_record does, and FileNotFoundError."""
    with storage_errors("read", path):
        data = path.read_bytes()
    return parse_record(data, path)


def parse_record(data: bytes, path: Path | str) -> dict[str, Any]:
    """Returns the body (without `sum`) of a record's bytes; raises RecordDamaged with the reason.

    Raises UnknownFormat where the sum is right and the version is unknown.
    """
    try:
        body = parse_json(data)
    except ValueError as error:
        raise RecordDamaged(f"{path} is not JSON ({error}); it is moved aside and rebuilt") from error
    if not isinstance(body, dict) or "v" not in body:
        raise RecordDamaged(f"{path} is no record: it lacks `v`; it is moved aside and rebuilt")
    claimed = body.pop("sum", None)
    try:
        actual = claimed if _is_summed(data, claimed) else _sum(body)
    except ValueError as error:  # a lone surrogate: JSON can spell it, UTF-8 cannot
        raise RecordDamaged(f"{path} holds text that is not UTF-8: {error}") from error
    if claimed != actual:
        raise RecordDamaged(f"{path} sums to {actual}, not to {claimed}; it is moved aside and rebuilt")
    require_version(body, path)
    return body


def parse_json(data: bytes) -> Any:
    """Returns the value of UTF-8 JSON; raises ValueError for anything else, also too long or too deep."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    text = data.decode("utf-8", "surrogatepass")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # Most files are not worth the walk: without so many brackets nothing can be so deep.
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        _refuse_depth(value)
    return value


def require_version(body: Mapping[str, Any], where: Path | str, known: Collection[int] = (VERSION,)) -> None:
    """Raises UnknownFormat unless `v` is a version of the file's format; check the body's sum before."""
    if body["v"] not in known:
        ours = " and ".join(map(str, known))
        raise UnknownFormat(
            f"{where} is of format version {body['v']!r}, this Stoker reads version {ours}: it is left as "
            "it is; start the Stoker that wrote it, or a newer one"
        )


def as_text(words: str) -> str:
    """Returns the text with bytes that are not UTF-8 escaped: a file name may hold them, JSON cannot."""
    return words.encode(errors="backslashreplace").decode()


def utc_now() -> str:
    """Returns the time of the wall clock as `2026-11-20T12:00:00Z`."""
    return utc_at(time.time())


def utc_at(seconds: float) -> str:
    """Returns a Unix time as `2026-11-20T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def new_id() -> str:
    """Returns a new id that sorts by time: `20261120T120000Z-1a2b3c4d`."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(4)


def read_whole(path: Path) -> dict[str, Any] | None:
    """Reads a record; returns None if it is missing or damaged."""
    try:
        return read_record(path)
    except (FileNotFoundError, RecordDamaged):
        return None


def read_or_set_aside(path: Path, quarantine: Path) -> dict[str, Any] | None:
    """Reads a record; returns None if it is missing, or damaged and moved to `<quarantine>/record-*/`.

    An unreadable record raises StorageError and is not moved.
    """
    try:
        return read_record(path)
    except FileNotFoundError:
        return None
    except RecordDamaged as error:
        set_aside(path, quarantine, "damaged", str(error))
        return None


def set_aside(path: Path, quarantine: Path, reason: str, detail: str) -> Path:
    """Moves a bad file into a new quarantine directory with its reason; returns that directory.

    Removes the directory where the file cannot be moved.
    """
    name = path.name.encode("ascii", "backslashreplace").decode()[:100]
    place = quarantine / f"record-{name}-{new_id()}"
    make_dir(place)
    # The reason first: after a crash in between, the bad file is in its old place and is found again.
    write_record(
        place / "reason.json",
        {
            "v": 1,
            "kind": "record",
            "path": as_text(str(path)),
            "reason": reason,
            "detail": as_text(detail),
            "time": utc_now(),
        },
    )
    try:
        move_durably(path, place / name)
    except OSError:
        remove_tree(place)
        raise
    return place


def body_of(thing: DataclassInstance) -> dict[str, Any]:
    """A dataclass as the body of a record, its fields as they are."""
    return {"v": 1, **{name: getattr(thing, name) for name in _names(type(thing))}}


def values_of(cls: type[DataclassInstance], record: Mapping[str, Any], *shared: str) -> dict[str, Any]:
    """What a record holds for the fields of a dataclass; the text of the shared ones is interned.

    Raises KeyError or TypeError where one of those is missing or no text.
    """
    values = {name: record[name] for name in _names(cls) if name in record}
    for name in shared:
        values[name] = sys.intern(values[name])
    return values


@functools.cache
def _names(cls: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _is_summed(data: bytes, claimed: object) -> bool:
    """Returns whether a plain record in canonical form has this sum.

    Takes a third of the time of making that form again; False also where it cannot be told this way.
    """
    before, found, after = data.rstrip(b"\n").rpartition(f',"sum":"{claimed}"'.encode(errors="replace"))
    is_plain = bool(found) and data.isascii() and b"\\u" not in data  # an escape may be no UTF-8
    return is_plain and hashlib.sha256(before + after).hexdigest()[:SUM_HEX] == claimed


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()[:SUM_HEX]


def _refuse_depth(value: Any) -> None:
    level = [value] if type(value) in _NESTS else []
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _NESTS
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"{word} is beyond every number")
    return number


_NESTS = frozenset((dict, list))
_TOO_DEEP = f"nested deeper than {MOST_DEPTH} levels"
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
