"""Where a run's checkpoints are: in the directories of a trainer of the user's own, and sealed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import Matches, Refused, expand
from stoker.checkpoints.external.saves import SealedSave
from stoker.checkpoints.retention import counts, find_checkpoints


@dataclass
class Place:
    """The trainer's `directory` and glob, and what Stoker has of its checkpoints."""

    directory: Path
    pattern: str | None
    checkpoints: Path
    given_up: tuple[Path, ...]  # directories into which rollbacks and convictions have put checkpoints
    history: tuple[tuple[int, int | None], ...]
    state: Path  # Stoker's own directory, which may lie below the trainer's
    replaced: Path  # where a sealed state goes that a later one of its step replaces
    begun: float = 0.0  # when the run began, Unix time

    def __post_init__(self) -> None:
        self._around = {self.directory, *self.directory.parents, *self.state.parents}

    @staticmethod
    def of(task: Mapping[str, Any]) -> Place:
        """Returns the place of a worker's task."""
        return Place(
            Path(os.path.realpath(task["directory"])),  # as the trainer tells its paths
            task["pattern"],
            Path(task["checkpoints"]),
            tuple(map(Path, task["given_up"])),
            tuple((int(timeline), upto) for timeline, upto in task["history"]),
            Path(os.path.realpath(task["state"])),
            Path(task["replaced"]),
            float(task["begun"]),
        )

    def is_kept_out(self, path: Path) -> bool:
        """Returns whether a path is or holds the trainer's directory or Stoker's, or lies in Stoker's."""
        real = Path(os.path.realpath(path))
        return real in self._around or real.is_relative_to(self.state)

    def sealed(self) -> list[SealedSave]:
        """Returns every sealed checkpoint of the history, the oldest first."""
        found = (
            SealedSave.of(one.path, one.body.raw, self.directory)
            for one in find_checkpoints(self.checkpoints)
            if one.body is not None and counts(one.body.timeline, one.step, self.history)
        )
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def given_up_marks(self) -> set[str]:
        """Returns the marks of the states that a rollback or a conviction has moved away."""
        found = (one for folder in self.given_up for one in find_checkpoints(folder))
        saves = (SealedSave.of(one.path, one.body.raw, self.directory) for one in found if one.body)
        return {save.mark for save in saves if save is not None}

    def found(self) -> Matches:
        """Returns the matches of the glob that are not kept out; raises as `expand`."""
        found = expand(self.directory, self.pattern) if self.pattern else Matches()
        found.paths = {path: None for path in found.paths if not self.is_kept_out(path)}
        return found

    def checked(self, told: str) -> Path:
        """Returns a path that the trainer told; raises Refused where it is not one of its directory's."""
        if "\0" in told:
            raise Refused("a path has no zero byte")
        path = self.directory / told
        if ".." in path.parts or not (path.is_relative_to(self.directory) or path in self.found().paths):
            raise Refused(f"{told} is neither below train.external.directory nor matched by checkpoints")
        inside = (one for one in path.parents if one.is_relative_to(self.directory))
        if link := next((one for one in inside if one != self.directory and one.is_symlink()), None):
            raise Refused(f"{told} leads through the symbolic link {link}; report the path that it leads to")
        if self.is_kept_out(path):
            raise Refused(f"{told} is or holds the trainer's directory or Stoker's; save into one of its own")
        return path
