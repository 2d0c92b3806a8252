"""A folder of source files: lists it, and decides how to treat the files that a look found."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from stoker.config.origins import compile_glob
from stoker.corpus.http.remote_file import printable
from stoker.corpus.records.receipts import Receipt
from stoker.store.files import NotPlain, folder_beneath
from stoker.store.layout import OWNER_LOCKS

IGNORED_SUFFIXES = (".incomplete", ".part", ".tmp")
FOREIGN_SUFFIXES = (".incomplete", ".aria2", ".crdownload")  # unfinished files of other clients
_FOREIGN_FOLDERS = (".cache", ".cache/huggingface", ".cache/huggingface/download")  # of the hub's client
DEFAULT_INCLUDE = ("*.parquet",)
LINK = "it is a symbolic link; give the folder it points to, or move the file here"


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A regular file as seen by a look: `path` is relative to the folder, with forward slashes.

    A new `ctime_ns` alone does not make it another file: making a hard link, as staging does, changes that.
    """

    path: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = field(default=0, compare=False)

    @property
    def etag(self) -> str:
        """A value that changes when the file does, computed without reading its content."""
        return f"{self.size}-{self.mtime_ns}-{self.inode}"

    def hash_task(self, root: str) -> dict[str, Any]:
        """Returns the task of the worker that hashes the file if it is unchanged."""
        about = {"size": self.size, "mtime_ns": self.mtime_ns, "inode": self.inode}
        return {"root": root, "path": self.path, **about}


@dataclass(frozen=True)
class PassedOver:
    """An entry that is no file of the dataset, although its name might match.

    `refused` is never read: a link, a device, a name that is not text, or a folder ("." for the root) that a
    pipeline owns by its `lock`. `unreadable` is a place the look could not read, so its result is not the
    whole folder. `unmanaged` is an unfinished file of another client.
    """

    kind: Literal["refused", "unreadable", "unmanaged"]
    path: str
    reason: str = ""
    lock: str = ""


Found = FileSeen | PassedOver


def is_unfinished(name: str) -> bool:
    """Whether a name is of a hidden file or a file being written, which no dataset holds."""
    return name.startswith(".") or name.endswith(IGNORED_SUFFIXES)


class Selection:
    """The include and exclude globs of a source; no include means every *.parquet."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = [compile_glob(pattern) for pattern in include or DEFAULT_INCLUDE]
        self._exclude = [compile_glob(pattern) for pattern in exclude]

    def takes(self, path: str) -> bool:
        """Whether this relative path belongs to the dataset; hidden and unfinished files never do."""
        if any(part.startswith(".") for part in path.split("/")) or is_unfinished(path):
            return False
        return any(glob.fullmatch(path) for glob in self._include) and not any(
            glob.fullmatch(path) for glob in self._exclude
        )


def look_through(
    root: Path, selection: Selection, tick: Callable[[], None] = lambda: None
) -> Iterator[Found]:
    """Yields every matching file below root, and other clients' unfinished files, in no particular order.

    `tick` is called for each folder entered. Links are refused, never followed, so no path outside root is
    named. Raises OSError when root itself cannot be listed; an unlistable folder below it is unreadable.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with folder_beneath(root, folder) as opened:
                tick()
                with os.scandir(opened) as entries:
                    found, below = _sort_out(entries, folder, selection)
        except NotPlain:  # a folder when its parent was listed
            yield PassedOver("refused", folder, LINK)
        except OSError as error:
            if not folder:
                raise
            yield PassedOver("unreadable", folder, error.strerror or str(error))
        else:
            folders += below
            yield from found


def _sort_out(
    entries: Iterable[os.DirEntry[str]], folder: str, selection: Selection
) -> tuple[list[Found], list[str]]:
    """Returns the matching entries of a folder, and its subfolders."""
    found: list[Found] = []
    below: list[str] = []
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name in OWNER_LOCKS and entry.is_file(follow_symlinks=False):
            why = f"its {entry.name} says that Stoker writes it"
            return [PassedOver("refused", folder or ".", why, lock=path)], []
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") or path in _FOREIGN_FOLDERS:
                below.append(path)
        elif entry.name.endswith(FOREIGN_SUFFIXES):
            found.append(PassedOver("unmanaged", printable(path)))
        elif selection.takes(path) or _linked_folder(entry):
            found.append(_examine(entry, path))
    return found, below


def _linked_folder(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_symlink() and entry.is_dir()


def _examine(entry: os.DirEntry[str], path: str) -> Found:
    try:
        path.encode()
        if entry.is_symlink():
            return PassedOver("refused", path, LINK)
        found = entry.stat(follow_symlinks=False)
    except UnicodeEncodeError:
        return PassedOver("refused", printable(path), "its name is not UTF-8")
    except FileNotFoundError:
        return PassedOver("refused", path, "it went away during the look")
    except OSError as error:
        return PassedOver("unreadable", path, error.strerror or str(error))
    if not stat.S_ISREG(found.st_mode):
        return PassedOver("refused", path, "it is not a regular file")
    return FileSeen(path, found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)


# What a look found


@dataclass(frozen=True)
class FolderScan:
    """The result of one look at the source folder; pairs are (path, reason), an empty path is the folder.

    `unmanaged` are some of other clients' unfinished files, of `unmanaged_in_all`. `polling` is the reason
    why only looks find changes; empty where inotify reports them.
    """

    files: Mapping[str, Watched]
    refused: Sequence[tuple[str, str]] = ()
    unreadable: Sequence[tuple[str, str]] = ()
    missing: bool = False
    polling: str = ""
    unmanaged: Sequence[str] = ()
    unmanaged_in_all: int = 0

    @classmethod
    def of(cls, message: Mapping[str, Any], files: Mapping[str, Watched]) -> FolderScan:
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

        `since` is at most the settling time ago.
        """
        return cls(file, now - min(settle_s, max(0.0, (wall_ns - file.ctime_ns) / 1e9)))


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
