"""The quarantine directory: one folder for each bad file or set, which holds it and its reason.json.

Marks that Stoker adds to a reason, each when it becomes true:
    revalidated, revalidations   when the content was last found still bad, and how often
    released    {"time", "why"}: its source was given another try, and the event is recorded
    dropping    {"why", "bytes"}: the content is removed or to be removed; the event is not recorded yet
    dropped     {"time", "why", "bytes"}: the content is removed, and the event is recorded
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError, storage_errors
from stoker.store.files import make_dir
from stoker.store.record import RecordDamaged, read_record, utc_now, write_record

REASON = "reason.json"
KINDS = ("parquet", "shards", "record", "checkpoint")


@dataclass(frozen=True)
class Kept:
    """One folder of the quarantine."""

    name: str  # of the folder; commands take this name
    kind: str
    things: tuple[str, ...] = ()  # the names beside reason.json
    bytes: int = 0  # of all things
    body: Mapping[str, Any] = field(default_factory=dict)  # the whole reason, empty where it cannot be read
    problem: str = ""  # why it cannot be read

    @property
    def path(self) -> str:
        """The path of the source, or of the file, that was quarantined."""
        return str(self.body.get("path") or "")

    @property
    def sha256(self) -> str:
        return str(self.body.get("sha256") or "")

    @property
    def reason(self) -> str:
        return str(self.body.get("reason") or self.problem)

    @property
    def when(self) -> str:
        """The time of the quarantine, as UTC text."""
        return str(self.body.get("time") or "")

    @property
    def looked_at(self) -> float:
        """The time of the last look that found it bad, in seconds since 1970; 0 where that is unknown."""
        return max(_seconds(self.when), _seconds(str(self.body.get("revalidated") or "")))

    @property
    def released(self) -> Mapping[str, Any] | None:
        return self._mark("released")

    @property
    def dropping(self) -> Mapping[str, Any] | None:
        return self._mark("dropping")

    @property
    def dropped(self) -> Mapping[str, Any] | None:
        return self._mark("dropped")

    def _mark(self, name: str) -> Mapping[str, Any] | None:
        value = self.body.get(name)
        return value if isinstance(value, Mapping) else None


def read_quarantine(directory: Path) -> tuple[Kept, ...]:
    """Returns every folder of the quarantine, newest first."""
    found = []
    with storage_errors("look through", directory):
        for folder in directory.glob("[!.]*"):
            try:
                if folder.is_dir() and not folder.is_symlink():
                    found.append(_read(folder))
            except FileNotFoundError:
                continue  # removed with its reason meanwhile
    return tuple(sorted(found, key=lambda kept: (kept.when, kept.name), reverse=True))


def mark(folder: Path, **changes: Any) -> None:
    """Adds fields to a folder's reason, durably; None removes a field.

    A damaged or missing reason is replaced by a reason "unknown".
    """
    try:
        body = read_record(folder / REASON)
    except (RecordDamaged, FileNotFoundError) as error:
        body = {"v": 1, "kind": kind_of(folder.name), "path": None, "reason": "unknown", "detail": str(error)}
    # A field that the reason holds as None (no row group is to blame) stays.
    kept = {name: value for name, value in body.items() if name not in changes}
    marks = {name: value for name, value in changes.items() if value is not None}
    write_record(folder / REASON, kept | marks)


def open_folder(directory: Path, kind: str, name: str, reason: Mapping[str, Any]) -> Path:
    """Returns the folder of this finding, and makes it first if it is missing.

    A folder whose finding was released is never used again: it belongs to an earlier finding.
    """
    body = {"v": 1, "kind": kind, "path": None, "sha256": None, **reason}
    for folder in sorted(directory.glob(f"{kind}-{name}-*"), reverse=True):
        try:
            known = read_record(folder / REASON)
        except (FileNotFoundError, DataError):
            continue
        if "released" not in known and all(known.get(field) == value for field, value in body.items()):
            return folder
    time = utc_now()
    stem = f"{kind}-{name}-{time.replace('-', '').replace(':', '')}"
    names = chain((stem,), (f"{stem}-{number}" for number in count(2)))
    folder = next(directory / each for each in names if not os.path.lexists(directory / each / REASON))
    make_dir(folder)
    write_record(folder / REASON, {**body, "time": time})
    return folder


def kind_of(name: str) -> str:
    """Returns the kind that a folder's name begins with; "other" for a folder that Stoker did not make."""
    kind = name.split("-", 1)[0]
    return kind if kind in KINDS else "other"


def bytes_of(thing: Path) -> int:
    """Returns the size of a file, or of all files below a directory."""
    if thing.is_symlink() or not thing.is_dir():
        return thing.lstat().st_size
    return sum(
        (Path(directory) / name).lstat().st_size for directory, _, names in os.walk(thing) for name in names
    )


def _read(folder: Path) -> Kept:
    body: dict[str, Any] = {}
    problem = ""
    try:
        body = read_record(folder / REASON)
    except FileNotFoundError:
        problem = f"no {REASON}"
    except RecordDamaged as error:
        problem = f"{REASON} is damaged: {error}"
    about = (REASON, f".tmp-{REASON}")
    things = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(about))
    names = tuple(thing.name for thing in things)
    return Kept(folder.name, kind_of(folder.name), names, sum(map(bytes_of, things)), body, problem)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
