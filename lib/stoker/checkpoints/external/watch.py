"""Seals what a trainer of the user's own saves: which of its paths, as which step, and when.

A path that the trainer tells is sealed at once, one that the glob matches when names, sizes and times have
not changed for `quiet_s`. Nothing is sealed twice: a state that is sealed, was given up by a rollback or was
set aside is known by its mark.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import (
    AFTER_STEP,
    Outside,
    Refused,
    expand,
    look_at,
    path_of,
    shown,
    step_in,
)
from stoker.checkpoints.external.sealing import Changed, seal_outside
from stoker.checkpoints.external.whole import why_not_whole
from stoker.checkpoints.retention import counts, find_checkpoints
from stoker.store.direct import Progress
from stoker.store.errors import DataError

RECENT = 8  # paths that are looked into although a step in their names is sealed: a look must cost little
FIRST_RETRY_S, LAST_RETRY_S = 10.0, 60.0
MOST_HEARD = 512  # words of the trainer that are kept, at most one a second
HEARD_LATE_S = 1.0  # until a step that it prints is heard: one read within it may have come before the save

# Unix time when it was heard, and step, tokens, loss, val_loss.
Heard = tuple[float, Mapping[str, Any]]


@dataclass
class Place:
    """Where a run's checkpoints are: the trainer's `directory` and glob, and what Stoker has of them."""

    directory: Path
    pattern: str | None
    checkpoints: Path
    given_up: tuple[Path, ...]  # directories into which rollbacks and convictions have put checkpoints
    history: tuple[tuple[int, int | None], ...]
    state: Path  # Stoker's own directory, which may lie below the trainer's
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
            float(task["begun"]),
        )

    def is_kept_out(self, path: Path) -> bool:
        """Returns whether a path is or holds the trainer's directory or Stoker's, or lies in Stoker's."""
        real = Path(os.path.realpath(path))
        return real in self._around or real.is_relative_to(self.state)

    def sealed(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields step and checkpoint.json of every sealed checkpoint of the history."""
        for one in find_checkpoints(self.checkpoints):
            if one.body is not None and counts(one.body.timeline, one.step, self.history):
                yield one.step, one.body.raw

    def given_up_marks(self) -> set[str]:
        """Returns the marks of the states that a rollback or a conviction has moved away."""
        bodies = [one.body for folder in self.given_up for one in find_checkpoints(folder)]
        return {mark for body in bodies if body is not None and (mark := mark_of(body.raw))}

    def found(self) -> tuple[list[Path], list[Path]]:
        """Returns the matches of the glob, and the links among them; raises as `expand`."""
        found, links = expand(self.directory, self.pattern) if self.pattern else ([], [])
        return [path for path in found if not self.is_kept_out(path)], links

    def checked(self, told: str) -> Path:
        """Returns a path that the trainer told; raises Refused where it is not one of its directory's."""
        if "\0" in told:
            raise Refused("a path has no zero byte")
        path = self.directory / told
        if ".." in path.parts or not (path.is_relative_to(self.directory) or path in self.found()[0]):
            raise Refused(f"{told} is neither below train.external.directory nor matched by checkpoints")
        inside = (one for one in path.parents if one.is_relative_to(self.directory))
        if link := next((one for one in inside if one != self.directory and one.is_symlink()), None):
            raise Refused(f"{told} leads through the symbolic link {link}; tell the path it leads to")
        if self.is_kept_out(path):
            raise Refused(f"{told} is or holds the trainer's directory or Stoker's; save into one of its own")
        return path


def mark_of(body: Mapping[str, Any]) -> str | None:
    """Returns the mark of the state that a sealed checkpoint was made of."""
    return body["external"].get("mark") if isinstance(body.get("external"), dict) else None


def _by_step(path: Path) -> tuple[bool, int, Path]:
    """Sorts paths by the steps in their names; those without come last, as a link or copy of another may."""
    step = step_in(path.name)
    return step is None, step or 0, path


def _passed(last: int, step: int | None) -> str:
    return f"it is of step {step}, and step {last} is sealed already: did the trainer begin again?"


@dataclass
class _Seen:
    """The state of a path, and since when it is the same."""

    mark: str
    since: float


@dataclass
class Watch:
    """The paths of one launch. `body` has the fields of checkpoint.json that are the same for all.

    `tell` takes a word and its fields; `heard` is what the trainer told, the newest last.
    """

    place: Place
    launch: str
    body: Mapping[str, Any]
    logs: Mapping[str, Path]  # plan and timelines
    tell: Callable[..., None]
    progress: Progress = lambda _: None
    heard: deque[Heard] = field(default_factory=lambda: deque(maxlen=MOST_HEARD))
    quiet_s: float = 5.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        sealed = sorted(self.place.sealed(), key=lambda one: one[0])
        self.last_step = max((step for step, _ in sealed), default=-1)
        self.known = self.place.given_up_marks() | {mark for _, body in sealed if (mark := mark_of(body))}
        # Sealed last: such a path may be written again, and a glob may not match it.
        self._last: deque[Path] = deque(maxlen=RECENT)
        self._last.extend(path for _, body in sealed if (path := path_of(body, self.place.directory)))
        # Not sealed yet: as it was told, its step, and when that was.
        self.told: dict[Path, tuple[str, int | None, float]] = {}
        self._seen: dict[Path, _Seen] = {}
        self._old: dict[Path, tuple[int, int]] = {}  # by name not newer than what is sealed: inode and time
        self._refused: dict[Path, str] = {}
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self.is_first = True
        self.sealed: list[int] = []

    def hear(self, told: str, step: int | None, at: float) -> None:
        """Takes in a path that the trainer says is complete, its step, and the Unix time when it said so."""
        try:
            self.told[self.place.checked(told)] = told, step, at
        except (Refused, OSError) as problem:
            self.tell("refused", path=shown(Path(told)), reason=str(problem))
            self.tell("taken", told=[told, step, at])

    def look(self, *, is_at_rest: bool = False) -> None:
        """Seals what is due. `is_at_rest`: no trainer runs, so nothing changes any more.

        A failure of storage is told and tried again later; `is_at_rest`, it is raised.
        """
        now = self.clock()
        if now < self._retry_at:
            return
        try:
            found, links = self.place.found()
            for link in links:
                self._refuse(link, "it is a symbolic link, which is never followed")
            for path in sorted({*found, *self._last, *self.told}, key=_by_step):
                self._consider(path, is_at_rest=is_at_rest)
            if self._retry_at or self.is_first:
                self.tell("well")
            self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        except (OSError, Refused) as problem:
            if is_at_rest:
                raise
            self.tell("trouble", message=str(problem))
            self._retry_at, self._retry_s = self.clock() + self._retry_s, min(LAST_RETRY_S, 2 * self._retry_s)
        finally:
            self.is_first = False

    def _consider(self, path: Path, *, is_at_rest: bool) -> None:
        named, is_told = step_in(path.name), path in self.told
        is_new = named is None or named > self.last_step or path in self._last
        try:
            if not is_new and not is_told:
                self._pass_over(path)
                return
            one = look_at(path)
            if (seen := self._seen.get(path)) is None or seen.mark != one.mark:
                seen = self._seen[path] = _Seen(one.mark, self.clock())
            if one.mark in self.known:
                self._taken(path)
            elif is_at_rest or self._is_told(one) or self.clock() - seen.since >= self.quiet_s:
                self._take(one, seen, is_at_rest=is_at_rest)
        except FileNotFoundError:
            self._seen.pop(path, None)
            if is_told:
                self._taken(path)
                self._refuse(path, "it is not there")
        except (DataError, PermissionError) as problem:
            self._refuse(path, str(problem))

    def _is_told(self, one: Outside) -> bool:
        """Returns whether the trainer told this state; one written since has a word of its own soon."""
        return one.path in self.told and one.saved_at <= self.told[one.path][2]

    def _take(self, one: Outside, seen: _Seen, *, is_at_rest: bool) -> None:
        why = why_not_whole(one)
        if one.saved_at < self.place.begun <= time.time():  # not where the clock was set back since
            why = "it is older than the run, which has not made it"
        if why:
            self._refuse(one.path, why)
            return
        step = self._step(one)
        if step <= self.last_step:
            self.known.add(one.mark)
            self._taken(one.path)
            if step < self.last_step:
                self._refuse(one.path, _passed(self.last_step, step))
            return
        try:
            self.seal(one, step)
            self._taken(one.path)
        except Changed:
            if is_at_rest:
                raise
            seen.since = self.clock()

    def _step(self, one: Outside) -> int:
        """Returns the step of a path's state: told with it, in its name, or the trainer's when it was saved.

        In a name that is written again only a number after "step" is one. Without any, steps are counted.
        """
        named, told = step_in(one.path.name), self.told[one.path][1] if self._is_told(one) else None
        is_sure = one.path not in self._last or AFTER_STEP.search(one.path.name)
        steps = (told, named if is_sure else None, self._step_at(one.saved_at), named)
        return next((step for step in steps if step is not None), self.last_step + 1)

    def _step_at(self, moment: float) -> int | None:
        """Returns the newest step that was made by a moment (Unix time), or the oldest that is known."""
        by_then = (told for at, told in reversed(self.heard) if at <= moment + HEARD_LATE_S)
        told = next(by_then, self.heard[0][1] if self.heard else None)
        return None if told is None else int(told["step"])

    def _values(self, step: int) -> Mapping[str, Any]:
        """Returns what the trainer told at a step, or last before it."""
        return next((told for _, told in reversed(self.heard) if told["step"] <= step), {})

    def seal(self, one: Outside, step: int) -> Path:
        """Seals a path's state as a step; raises as `seal_outside`."""
        began = self.clock()
        logs = {name: path.read_bytes() if path.exists() else b"" for name, path in self.logs.items()}
        sealed = seal_outside(
            one,
            self.place.checkpoints,
            {**self.body, **self._values(step), "step": step},
            directory=self.place.directory,
            launch=self.launch,
            logs=logs,
            progress=self.progress,
        )
        self.last_step = step
        self.sealed.append(step)
        self.known.add(one.mark)
        self._last.append(one.path)
        self._refused.pop(one.path, None)
        seconds = round(self.clock() - began, 3)
        size = sum(file.size for file in one.files.values())
        self.tell("sealed", step=step, name=sealed.name, path=shown(one.path), bytes=size, seconds=seconds)
        return sealed

    def _taken(self, path: Path) -> None:
        """Tells that a told path needs no further look."""
        if path in self.told:
            self.tell("taken", told=list(self.told.pop(path)))

    def _pass_over(self, path: Path) -> None:
        """Tells of a path that is written now and whose name has a step that was passed already."""
        found = os.lstat(path)
        state = found.st_ino, found.st_mtime_ns
        if self._old.get(path, state if self.is_first else None) != state:
            self._refuse(path, _passed(self.last_step, step_in(path.name)))
        self._old[path] = state

    def _refuse(self, path: Path, why: str) -> None:
        """Tells once why a path is not sealed."""
        if self._refused.get(path) != why:
            self._refused[path] = why
            self.tell("refused", path=shown(path), reason=why)
