"""What lies in quarantine: a folder each, the bad thing, and reason.json, which also tells what became of it.

The marks that are added to a reason (each present once it holds):
    revalidated, revalidations   when the thing was last found still bad, and how often
    released    {"time", "why"}: its source was given another try, and there was an event
    dropping    {"why", "bytes"}: the thing is gone or to go, and there is no event yet
    dropped     {"time", "why", "bytes"}: the thing is gone, and there was an event
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
from stoker.store.names import utc_now
from stoker.store.record import RecordDamaged, read_record, write_record

REASON = "reason.json"
KINDS = ("parquet", "shards", "record", "checkpoint")


@dataclass(frozen=True)
class Kept:
    """One folder of the quarantine; `name` is the folder's, by which people name it.

    `things` are the names beside the reason, `bytes` their sizes in sum; `body` is the whole reason, empty
    where it cannot be read, which `problem` then tells.
    """

    name: str
    kind: str
    things: tuple[str, ...] = ()
    bytes: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def path(self) -> str:
        """What it was: a source's path, or a file's."""
        return str(self.body.get("path") or "")

    @property
    def sha256(self) -> str:
        return str(self.body.get("sha256") or "")

    @property
    def reason(self) -> str:
        return str(self.body.get("reason") or self.problem)

    @property
    def when(self) -> str:
        """When it was set aside, as UTC text."""
        return str(self.body.get("time") or "")

    @property
    def looked_at(self) -> float:
        """When it was last found bad, in seconds since 1970; 0 when that is not known."""
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
    """Everything in it, newest first."""
    found = []
    with storage_errors("look through", directory):
        for folder in directory.glob("[!.]*"):
            try:
                if folder.is_dir() and not folder.is_symlink():
                    found.append(_read(folder))
            except FileNotFoundError:
                continue  # dropped with its reason meanwhile
    return tuple(sorted(found, key=lambda kept: (kept.when, kept.name), reverse=True))


def mark(folder: Path, **changes: Any) -> None:
    """Add to a folder's reason, durably; None takes a mark away. A damaged or lost reason is written anew."""
    try:
        body = read_record(folder / REASON)
    except (RecordDamaged, FileNotFoundError) as error:
        body = {"v": 1, "kind": kind_of(folder.name), "path": None, "reason": "unknown", "detail": str(error)}
    # What the reason says of nothing (a file that has no row group to blame) it goes on saying.
    kept = {name: value for name, value in body.items() if name not in changes}
    marks = {name: value for name, value in changes.items() if value is not None}
    write_record(folder / REASON, kept | marks)


def open_folder(directory: Path, kind: str, name: str, reason: Mapping[str, Any]) -> Path:
    """The folder of this finding, made now where there is none; what was released is another finding's."""
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
    """The kind of thing a folder of this name holds; "other" for what Stoker did not put there."""
    kind = name.split("-", 1)[0]
    return kind if kind in KINDS else "other"


def bytes_of(thing: Path) -> int:
    """The size of a file, or of all files below a directory."""
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
