"""Finds the checkpoints of a trainer of the user's own, and looks at them without following links.

Names that Stoker gives in the trainer's directories, and never takes for a checkpoint:
    <name>.before-<id>      what lay at a path before the path was restored
    .tmp-stoker-<run id>    a restoration at work
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.store.errors import DataError
from stoker.store.files import canonical_json

MOST_FILES = 10_000  # of a checkpoint, and matches of a glob
AFTER_STEP = re.compile(r"step[=_-]?(\d{1,18})(?!\d)", re.IGNORECASE)
ASIDE = re.compile(r".+\.before-\d{8}T\d{6}Z-[0-9a-f]{8}", re.DOTALL)
_NO_STEP = re.compile(r"\d+\.\d+|epoch[=_-]?\d+", re.IGNORECASE)
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


def expand(directory: Path, pattern: str) -> tuple[list[Path], list[Path]]:
    """Returns the paths that match a glob below `directory`, and the symbolic links among them, passed over.

    The leading names without `*`, `?` and `[` are the user's own and may be links. `**` is any number of
    directories. A leading dot is matched only by a dot. Raises Refused for more than MOST_FILES matches,
    OSError where a directory cannot be read.
    """
    parts = PurePosixPath(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
    fixed = min(fixed, len(parts) - 1)
    found, links = dict[Path, None](), dict[Path, None]()
    for path, is_link in _below(directory.joinpath(*parts[:fixed]), parts[fixed:]):
        (links if is_link else found)[path] = None
        if len(found) > MOST_FILES:
            raise Refused(f"{pattern} matches more than {MOST_FILES:,} paths; name the checkpoints alone")
    return list(found), list(links)


def _below(folder: Path, parts: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    head, rest = parts[0], parts[1:]
    if head == "**":
        yield from _below(folder, rest)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
        if entry.name.startswith(".") and not head.startswith("."):
            continue
        if head == "**":
            if is_folder:
                yield from _below(path, parts)
        elif fnmatch.fnmatchcase(entry.name, head) and not ASIDE.fullmatch(entry.name):
            if entry.is_symlink():
                yield path, True
            elif not rest:
                yield path, False
            elif is_folder:
                yield from _below(path, rest)


def look_at(path: Path) -> Outside:
    """Returns the state of a file or directory; follows no link.

    Raises Refused where something in it cannot be sealed, FileNotFoundError where it, or a file of it, is
    gone, else OSError.
    """
    _require_plain(path)
    found = os.lstat(path)
    files: dict[str, FileState] = {}
    if stat.S_ISDIR(found.st_mode):
        is_unfinished = _walk(path, path.name, files)
        if not files:
            raise Refused(f"{path} is an empty directory")
    else:
        _take(path, path.name, found, files)
        is_unfinished = fnmatch.fnmatchcase(path.name, _UNFINISHED)
    return Outside(path, files, is_unfinished)


def _walk(folder: Path, name: str, files: dict[str, FileState]) -> bool:
    is_unfinished = False
    for entry in os.scandir(folder):
        below, path = f"{name}/{entry.name}", folder / entry.name
        is_unfinished |= fnmatch.fnmatchcase(entry.name, _UNFINISHED)
        if entry.is_dir(follow_symlinks=False):
            is_unfinished |= _walk(path, below, files)
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
    if "\\" in name or not name.isprintable() or len(name.encode("utf-8", "surrogateescape")) > 255:
        raise Refused(f"{shown(path)} has a name that `sha256sum -c` cannot read; give it a plain one")


def shown(path: Path) -> str:
    """Returns a path for messages, with what is no text escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def step_in(name: str) -> int | None:
    """Returns the step in a checkpoint's name: the number after "step", else the last whole number.

    The number after "epoch" is none.
    """
    if found := AFTER_STEP.findall(name):
        return int(found[-1])
    numbers = re.findall(r"\d+", _NO_STEP.sub("", name))
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 18 else None


def words_of(one: Outside, directory: Path, launch: str) -> dict[str, object]:
    """Returns `external` of checkpoint.json: where the checkpoint was, and what a restoration puts back."""
    path = one.path.relative_to(directory) if one.path.is_relative_to(directory) else one.path
    files = {name: [found.mtime_ns, found.mode] for name, found in one.files.items()}
    return {"path": str(path), "kind": one.kind, "launch": launch, "mark": one.mark, "files": files}


def path_of(body: Mapping[str, object], directory: Path) -> Path | None:
    """Returns the trainer's path of a sealed checkpoint with this checkpoint.json; None where it has none."""
    external = body.get("external")
    return directory / str(external["path"]) if isinstance(external, dict) else None
