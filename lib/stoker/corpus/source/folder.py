"""Lists a folder of source files: matching files, refused entries, unreadable places."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.config.origins import compile_glob
from stoker.corpus.http.remote_file import printable
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
    whole folder. `foreign` is an unfinished file of another client.
    """

    kind: Literal["refused", "unreadable", "foreign"]
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
            found.append(PassedOver("foreign", printable(path)))
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
