"""What the sealed saves of a trainer of the user's own tell of its next: when it began, whether it is over.

Nobody says of a file that it is the last one of a save. What is known: the files that the saves before have
written, and the longest pause within one of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import FileState, Outside, path_of
from stoker.checkpoints.format import FILES

# Of the size that a file had in the save before; a smaller one may be cut off. A small file is written at
# once: it is empty or whole, and its numbers may have fewer digits. So may those in a large one.
_SHRUNK, _AT_ONCE_BYTES, _DIGITS_BYTES = 0.9, 4096, 64
_GROWN = 1.1  # times the size that a file had: less is another save of about the same size
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Written:
    """The save that a path's state is of: when its first file was written, and its longest pause so far."""

    began_ns: int
    pause_s: float = 0.0
    is_told: bool = False  # the trainer said that it is whole


@dataclass(frozen=True)
class SealedSave:
    """A sealed checkpoint of a trainer of the user's own, from its checkpoint.json."""

    sealed: Path
    number: int  # in the directory's name
    step: int | None  # None where nobody knows it
    path: Path  # where the trainer saved it
    mark: str
    files: Mapping[str, tuple[int, int]]  # size and time of change by name, as `Outside` has them
    hashes: Mapping[str, str] = field(repr=False)
    written: Written
    launch: str

    @staticmethod
    def of(sealed: Path, body: Mapping[str, Any], directory: Path) -> SealedSave | None:
        """Returns the save of a checkpoint.json; None where no such trainer made it."""
        path, listed = path_of(body, directory), body["files"]
        if path is None:
            return None
        words = body["external"]
        files = {
            name: (int(listed[f"{FILES}/{name}"]["size"]), int(mtime_ns))
            for name, (mtime_ns, _) in words["files"].items()
        }
        began_ns = words.get("began_ns", min(mtime_ns for _, mtime_ns in files.values()))
        return SealedSave(
            sealed,
            int(body["step"]),
            words.get("step", body["step"]),
            path,
            str(words.get("mark")),
            files,
            {name: str(listed[f"{FILES}/{name}"]["sha256"]) for name in files},
            Written(began_ns, float(words.get("pause_s", 0.0)), bool(words.get("told", False))),
            str(words.get("launch", "")),
        )

    @property
    def saved_at(self) -> float:
        """Unix time at which the last of the files was written."""
        return max(mtime_ns for _, mtime_ns in self.files.values()) / 1e9

    @property
    def own(self) -> dict[str, tuple[int, int]]:
        """The files that this save wrote; the others lay there before."""
        return {name: one for name, one in self.files.items() if one[1] >= self.written.began_ns}

    def goes_on_in(self, one: Outside, longest_s: float) -> bool:
        """Returns whether a path's state has more of this very save, which was not over when it was sealed.

        The rest of a save comes within `longest_s`: what comes later is the next save.
        """
        is_kept = all(_state(one.files.get(name)) == was for name, was in self.own.items())
        return one.path == self.path and is_kept and one.saved_at - self.saved_at <= longest_s

    def is_of(self, one: Outside) -> bool:
        """Returns whether it is of the same path, or of one whose name differs by its numbers alone."""
        return one.path == self.path or form(one.path.name) == form(self.path.name)


def has_all(sizes: Mapping[str, int], written: Mapping[str, FileState]) -> bool:
    """Returns whether all the files of an earlier save are `written` again, and none is much shorter."""
    wanted, have = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for name, size in sizes.items():
        wanted[form(inside(name))].append(size)
    for name, state in written.items():
        have[form(inside(name))].append(state.size)
    return all(
        len(have[name]) >= len(known) and min(have[name]) >= _least(min(known))
        for name, known in wanted.items()
    )


def sizes_of(one: Outside, written: Written) -> dict[str, int]:
    """Returns the sizes of the files that the save of a state wrote."""
    return {name: state.size for name, state in one.files.items() if state.mtime_ns >= written.began_ns}


def written_since(before: SealedSave | None, one: Outside) -> dict[str, FileState]:
    """Returns the files of a path's state that are not as they were in the state sealed before."""
    was = before.files if before is not None else {}
    return {name: state for name, state in one.files.items() if was.get(name) != _state(state)}


def _state(state: FileState | None) -> tuple[int, int] | None:
    return None if state is None else (state.size, state.mtime_ns)


def goes_on(before: Outside, written: Written, one: Outside) -> bool:
    """Returns whether a later state of a path has more of the save that a state was seen of.

    All that the save had written is there: unchanged, or the same file with more in it.
    """
    own = ((name, was) for name, was in before.files.items() if was.mtime_ns >= written.began_ns)
    return all(
        (now := one.files.get(name)) is not None
        and (now == was or (now.inode == was.inode and now.size >= _GROWN * was.size))
        for name, was in own
    )


def _least(size: int) -> float:
    return _SHRUNK * size if size <= _AT_ONCE_BYTES else size - _DIGITS_BYTES


def form(name: str) -> str:
    """Returns a name without its numbers."""
    return _DIGITS.sub("#", name)


def inside(name: str) -> str:
    """Returns a file's name below its checkpoint; "" of a checkpoint that is one file."""
    return name.partition("/")[2]
