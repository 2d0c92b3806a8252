"""Records: one JSON object per file, with `v` (format version) and `sum` (hash of the other fields)."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import canonical_json, make_dir, move_durably, opened, remove_tree, write_atomic
from stoker.store.names import as_text, new_id, utc_now
from stoker.store.parsing import MOST_BYTES, parse_json, require_version

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SUM_HEX = 16


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
        data = _read_file(path)
    return parse_record(data, path)


def parse_record(data: bytes, path: Path | str) -> dict[str, Any]:
    """Returns the body (without `sum`) of a record's bytes; raises RecordDamaged with the reason.

    Raises UnknownFormat where the sum is right and the version is unknown.
    """
    body = _summed(data, path)
    require_version(body, path)
    return body


def _summed(data: bytes, path: Path | str) -> dict[str, Any]:
    try:
        body = parse_json(data)
    except ValueError as error:
        raise RecordDamaged(f"{path} is not JSON ({error}); it is moved aside and rebuilt") from error
    if not isinstance(body, dict) or "v" not in body:
        raise RecordDamaged(f"{path} is no record: it lacks `v`; it is moved aside and rebuilt")
    claimed = body.pop("sum", None)
    try:
        actual = _sum(body)
    except ValueError as error:  # a lone surrogate: JSON can spell it, UTF-8 cannot
        raise RecordDamaged(f"{path} holds text that is not UTF-8: {error}") from error
    if claimed != actual:
        raise RecordDamaged(f"{path} sums to {actual}, not to {claimed}; it is moved aside and rebuilt")
    return body


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


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()[:SUM_HEX]


def _read_file(path: Path) -> bytes:
    # Without O_NONBLOCK a fifo in a shared directory would hang its reader.
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        pieces, left = [], MOST_BYTES + 1
        while left and (piece := os.read(descriptor, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)
