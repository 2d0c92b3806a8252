"""Finds the checkpoints of a trainer of the user's own, and looks at them without following links.

A match or a folder that cannot be used is refused alone: the others are found all the same.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from stoker.checkpoints.external.names import MOST_NAME_BYTES, put_aside_at
from stoker.store.errors import DataError
from stoker.store.files import canonical_json

MOST_FILES = 10_000  # of a checkpoint, and matches of a glob
MOST_DEPTH = 64  # folders within each other
OF_ONE_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)  # no fault of the disk's
_MAGIC = re.compile(r"[*?[]")
_UNFINISHED = "*incomplete*"  # HF's Trainer keeps such a file inside until the checkpoint is whole


class Refused(DataError):
    """A path is not taken for a checkpoint, and is left as it is."""


@dataclass(frozen=True)
class FileState:
    """A file as a look found it; its times do not tell apart two files of one restoration."""

    size: int
    mtime_ns: int
    mode: int  # permission bits
    inode: int


@dataclass(frozen=True)
class Outside:
    """A checkpoint outside of the state directory: one file, or a directory.

    `files` are the states of its files by their path from its parent: "ckpt.pt", "checkpoint-100/model.bin".
    """

    path: Path
    files: Mapping[str, FileState]
    is_unfinished: bool  # a name inside says so

    @property
    def kind(self) -> str:
        return "file" if self.path.name in self.files else "directory"

    @property
    def saved_at(self) -> float:
        """Unix time at which the last of the files was written."""
        return max(file.mtime_ns for file in self.files.values()) / 1e9

    @property
    def mark(self) -> str:
        """64 hex digits over names, sizes and times: another mark is another state of the path."""
        listed = [(name, one.size, one.mtime_ns) for name, one in sorted(self.files.items())]
        return hashlib.sha256(canonical_json(listed)).hexdigest()


@dataclass
class Matches:
    """What a glob finds: paths, the symbolic links among them, and why what it passes cannot be used."""

    paths: dict[Path, None] = field(default_factory=dict)  # in order
    links: dict[Path, None] = field(default_factory=dict)
    refused: dict[Path, str] = field(default_factory=dict)


def expand(directory: Path, pattern: str) -> Matches:
    """Returns what matches a glob below `directory`; links are passed over.

    The leading names without `*`, `?` and `[` are the user's own and may be links. `**` is any number of
    directories. A leading dot is matched only by a dot. Raises Refused for more than MOST_FILES matches,
    OSError where the disk fails or the directory of the leading names cannot be read.
    """
    parts = PurePosixPath(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
    fixed = min(fixed, len(parts) - 1)
    found, folder = Matches(), directory.joinpath(*parts[:fixed])
    _find(folder, parts[fixed:], found, 0)
    if (why := found.refused.get(folder)) is not None:
        raise PermissionError(errno.EACCES, why, str(folder))
    if len(found.paths) > MOST_FILES:
        raise Refused(f"{pattern} matches more than {MOST_FILES:,} paths; name the checkpoints alone")
    return found


def _find(folder: Path, parts: Sequence[str], found: Matches, depth: int) -> None:
    if len(found.paths) > MOST_FILES:
        return
    if depth > MOST_DEPTH:
        found.refused[folder] = f"more than {MOST_DEPTH} folders lie within each other"
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        _find(folder, rest, found, depth)
    for entry in _entries(folder, found):
        path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
        if entry.name.startswith(".") and not head.startswith("."):
            continue
        if head == "**":
            if is_folder:
                _find(path, parts, found, depth + 1)
        elif fnmatch.fnmatchcase(entry.name, head) and put_aside_at(entry.name) is None:
            if entry.is_symlink():
                found.links[path] = None
            elif not rest:
                found.paths[path] = None
            elif is_folder:
                _find(path, rest, found, depth + 1)


def _entries(folder: Path, found: Matches) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno not in OF_ONE_PATH:
            raise
        found.refused[folder] = f"it cannot be read: {error.strerror}"
        return []


def look_at(path: Path) -> Outside:
    """Returns the state of a file or directory; follows no link.

    Raises Refused where something in it cannot be sealed, FileNotFoundError where it, or a file of it, is
    gone, else OSError.
    """
    _require_plain(path)
    found = os.lstat(path)
    files: dict[str, FileState] = {}
    if stat.S_ISDIR(found.st_mode):
        is_unfinished = _walk(path, path.name, files, MOST_DEPTH)
        if not files:
            raise Refused(f"{path} is an empty directory")
    else:
        _take(path, path.name, found, files)
        is_unfinished = fnmatch.fnmatchcase(path.name, _UNFINISHED)
    return Outside(path, files, is_unfinished)


def _walk(folder: Path, name: str, files: dict[str, FileState], depth: int) -> bool:
    if not depth:
        raise Refused(f"{shown(folder)} lies in more than {MOST_DEPTH} folders within each other")
    is_unfinished = False
    for entry in os.scandir(folder):
        below, path = f"{name}/{entry.name}", folder / entry.name
        is_unfinished |= fnmatch.fnmatchcase(entry.name, _UNFINISHED)
        if entry.is_dir(follow_symlinks=False):
            is_unfinished |= _walk(path, below, files, depth - 1)
        else:
            _take(path, below, entry.stat(follow_symlinks=False), files)
        if len(files) > MOST_FILES:
            raise Refused(f"{folder} holds more than {MOST_FILES:,} files")
    return is_unfinished


def _take(path: Path, name: str, found: os.stat_result, files: dict[str, FileState]) -> None:
    _require_plain(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
        raise Refused(f"{shown(path)} is {kind}; only files and directories are sealed")
    mode = stat.S_IMODE(found.st_mode)
    files[name] = FileState(found.st_size, found.st_mtime_ns, mode, found.st_ino)


def _require_plain(path: Path) -> None:
    name = path.name
    if "\\" in name or not name.replace("\t", " ").isprintable() or len(os.fsencode(name)) > MOST_NAME_BYTES:
        raise Refused(f"{shown(path)} has a name that `sha256sum -c` cannot read; give it a plain one")


def shown(path: Path) -> str:
    """Returns a path for messages, with what is no text escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def path_of(body: Mapping[str, object], directory: Path) -> Path | None:
    """Returns the trainer's path of a sealed checkpoint with this checkpoint.json; None where it has none."""
    external = body.get("external")
    return directory / str(external["path"]) if isinstance(external, dict) else None
