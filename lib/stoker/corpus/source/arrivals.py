"""Decides how to treat the files that a look found: pure functions of the download watchdog."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stoker.corpus.records.receipts import Receipt
from stoker.corpus.source.folder import FileSeen


@dataclass(frozen=True)
class Look:
    """The result of one look at the source folder; pairs are (path, reason), an empty path is the folder.

    `foreign` are some of other clients' unfinished files, of `foreign_in_all`. `polling` is the reason why
    only looks find changes; empty where inotify reports them.
    """

    files: Mapping[str, Watched]
    refused: Sequence[tuple[str, str]] = ()
    unreadable: Sequence[tuple[str, str]] = ()
    missing: bool = False
    polling: str = ""
    foreign: Sequence[str] = ()
    foreign_in_all: int = 0

    @classmethod
    def of(cls, message: Mapping[str, Any], files: Mapping[str, Watched]) -> Look:
        """Returns a look from the lister's last message and the files that it named before."""
        return cls(files, **{each.name: message[each.name] for each in fields(cls) if each.name != "files"})

    def trouble(self, root: str, receipts: int) -> str:
        """Returns why this look says nothing about the files, in a sentence; empty when it does."""
        if self.missing:
            return f"the source folder {root} is not there; mount it, or correct dataset.source.path"
        if reason := dict(self.unreadable).get(""):
            return f"the source folder {root} cannot be read: {reason}"
        if receipts and not self.files:
            # An unmounted mount point is an empty folder, which does not mean that the files were deleted.
            return f"the source folder {root} is empty but {receipts} files came from it; mount it"
        return ""


@dataclass(frozen=True, slots=True)
class Watched:
    """A file, and since when (monotonic seconds) it is unchanged."""

    file: FileSeen
    since: float

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size(self) -> int:
        return self.file.size

    @classmethod
    def first(cls, file: FileSeen, *, now: float, wall_ns: int, settle_s: float) -> Watched:
        """Returns a new file, unchanged since its ctime, which no program can set; a future ctime means now.

        `since` is limited to the settling time and rounded up to tenths of a second, to keep few distinct
        values.
        """
        age_s = max(0.0, (wall_ns - file.ctime_ns) / 1e9)
        if age_s >= settle_s:
            return cls(file, now - settle_s)
        return cls(file, min(now, math.ceil(10 * (now - age_s)) / 10))


def watch(before: Mapping[str, Watched], found: Iterable[Watched], now: float) -> dict[str, Watched]:
    """Returns the watched files after another look: a changed file starts its quiet time again."""
    known = ((new, before.get(new.file.path, new)) for new in sorted(found, key=lambda new: new.file.path))
    return {new.file.path: old if old.file == new.file else Watched(new.file, now) for new, old in known}


def file_of(root: str, path: str) -> str:
    """Returns a source file's path as its receipt records it."""
    return f"{root.rstrip('/')}/{path}"


def settling(files: Iterable[Watched], now: float, settle_s: float) -> dict[str, float]:
    """Returns when each file that has not settled will have, monotonic seconds by path."""
    return {each.path: each.since + settle_s for each in files if now < each.since + settle_s}


class FolderRules:
    """The rules for a source folder: files without a valid receipt are hashed.

    A receipt for another folder path, from before the folder was moved, does not count.
    """

    states = ("settling", "waiting", "hashing", "verified", "disputed", "rotten")

    def __init__(self, root: str) -> None:
        self._root = root

    def state_of(self, file: Watched, receipt: Receipt | None) -> tuple[str, bool]:
        """Implements Rules."""
        if receipt is None:
            return "waiting", True
        is_open = receipt.state == "disputed" and not receipt.rotten
        if is_open or receipt.etag != file.file.etag or receipt.file != file_of(self._root, file.path):
            return "disputed" if receipt.state == "disputed" else "waiting", True
        return "rotten" if receipt.rotten else "verified", False

    def wanted_again(self, receipt: Receipt) -> Watched | None:
        """Returns None: a folder's files cannot be fetched."""
        return None


def is_rot(receipt: Receipt | None, file: FileSeen, sha256: str) -> bool:
    """Whether the content differs from its receipt although the file was not written to: rot, not an edit."""
    return receipt is not None and receipt.etag == file.etag and receipt.sha256 != sha256
