"""What lies in quarantine: a folder each, the bad thing, and reason.json, which also tells what became of it.

The marks that are added to a reason (each present once it holds):
    revalidated, revalidations   when the thing was last found still bad, and how often
    unseen      the reason was written for one that was lost: `time` tells of no look
    released    {"time", "why", "told"}: its source was given another try; `told`: there was an event
    dropping    {"why", "bytes", "reason_too"}: the thing is to go, an intent that is finished at a start
    dropped     {"time", "why", "bytes"}: the thing is gone, and there was an event
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.store.errors import storage_errors
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
        first = 0.0 if self.body.get("unseen") else _seconds(self.when)
        return max(first, _seconds(str(self.body.get("revalidated") or "")))

    @property
    def released(self) -> Mapping[str, Any] | None:
        return _mapping(self.body.get("released"))

    @property
    def dropping(self) -> Mapping[str, Any] | None:
        return _mapping(self.body.get("dropping"))

    @property
    def dropped(self) -> Mapping[str, Any] | None:
        return _mapping(self.body.get("dropped"))


class QuarantineDir:
    """Reads the quarantine; a folder that did not change since is not read again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[tuple[int, ...], Kept]] = {}

    def read(self) -> tuple[Kept, ...]:
        """Everything in it, newest first."""
        known: dict[str, tuple[tuple[int, ...], Kept]] = {}
        with storage_errors("look through", self.directory):
            for folder in _folders(self.directory):
                try:
                    stamp = (folder.stat().st_mtime_ns, *_changed(folder / REASON))
                    before = self._known.get(folder.name)
                    fresh = before is not None and before[0] == stamp
                    known[folder.name] = before if before and fresh else (stamp, _read(folder))
                except FileNotFoundError:
                    continue  # dropped with its reason meanwhile
        self._known = known
        return tuple(sorted((kept for _, kept in known.values()), key=_age, reverse=True))


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
    things = sorted(entry for entry in folder.iterdir() if not _is_of_the_record(entry.name))
    return Kept(
        name=folder.name,
        kind=kind_of(folder.name),
        things=tuple(thing.name for thing in things),
        bytes=sum(bytes_of(thing) for thing in things),
        body=body,
        problem=problem,
    )


def _is_of_the_record(name: str) -> bool:
    return name == REASON or name.startswith(f".tmp-{REASON}")


def _folders(directory: Path) -> Iterator[Path]:
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield directory / entry.name


def _changed(file: Path) -> tuple[int, ...]:
    """Changes with the file, also when it is written twice in one tick of the file system's clock."""
    try:
        about = file.stat()
    except FileNotFoundError:
        return ()
    return about.st_mtime_ns, about.st_ino, about.st_size


def _age(kept: Kept) -> tuple[str, str]:
    return kept.when, kept.name


def _seconds(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return 0.0


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None
