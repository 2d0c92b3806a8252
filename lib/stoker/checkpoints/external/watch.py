"""Seals what a trainer of the user's own saves: which of its paths, as which step, and when.

A path that the trainer tells is sealed at once; one that the glob matches once names, sizes and times have
not changed for long enough, but not of a launch that tells its checkpoints. A state is known by its mark once
it is sealed, given up by a rollback or set aside: it is not sealed again. Another state of the newest
path at the same step replaces the sealed one, and so does the rest of a save that was sealed half.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import OF_ONE_PATH, Matches, Outside, Refused, look_at, shown
from stoker.checkpoints.external.names import step_in, steps_in
from stoker.checkpoints.external.place import Place
from stoker.checkpoints.external.saves import SealedSave, form
from stoker.checkpoints.external.sealing import is_copy, seal_outside
from stoker.checkpoints.external.series import LAG_S, PathState, Series
from stoker.checkpoints.external.step_reports import StepReports
from stoker.checkpoints.external.whole import why_not_whole
from stoker.store.direct import Progress
from stoker.store.errors import DataError, Transient
from stoker.store.files import drop_first
from stoker.store.record import new_id

FIRST_RETRY_S, LAST_RETRY_S = 10.0, 60.0
KEPT_REPLACED = 1
MISSED = (
    "it is written again before it was still for long enough to be whole for sure: save into another "
    "directory each time, report it by the client, or lower train.external.quiet"
)
UNSURE = (
    "its trainer ended while it was written or soon after, and nothing shows that it is whole; "
    "the run continues from the one before"
)


@dataclass(frozen=True)
class End:
    """How the launch ended whose saves are looked at, as far as it is known."""

    is_clean: bool = False  # by itself or when asked, with exit code 0
    is_by_itself: bool = False  # whatever its code
    was_saving: bool = False  # as it said last
    alive_at: float = 0.0  # Unix time when it was surely alive: the last sign of it


@dataclass
class Watch:
    """The paths of one launch. `body` has the fields of checkpoint.json that are the same for all.

    `tell` takes a word and its fields; `heard` is what the trainer told of its steps.
    """

    place: Place
    launch: str
    body: Mapping[str, Any]
    logs: Mapping[str, Path]  # plan and timelines
    tell: Callable[..., None]
    progress: Progress = lambda _: None
    heard: StepReports = field(default_factory=StepReports)
    quiet_s: float = 5.0
    first_quiet_s: float = 15.0  # for a save that is like none before it
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        quiet = self.quiet_s, self.first_quiet_s
        self.series = Series(self.place.sealed(), self.place.given_up_marks(), *quiet, self.clock)
        # Not sealed yet: as it was told, its step, and when that was.
        self.told: dict[Path, tuple[str, int | None, float]] = {}
        self.tells = any(one.written.is_told and one.launch == self.launch for one in self.series.saves)
        self.is_saving = False  # the trainer says so
        self.sealing_s = 0.0  # of the last look
        self.sealed: list[int] = []
        self.unsure: list[Path] = []  # that an ended trainer may have left half
        self._found = Matches()
        self._repeated = frozenset[int]()  # numbers in the names of several matches
        self._refused: dict[Path, str] = {}
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self._is_first = True

    def hear(self, told: str, step: int | None, at: float) -> None:
        """Takes in a path that the trainer says is complete, its step, and the Unix time when it said so."""
        self.tells = True
        try:
            self.told[self.place.checked(told)] = told, step, at
        except (Refused, OSError) as problem:
            self.tell("refused", path=shown(Path(told)), reason=str(problem), is_newest=True)
            self.tell("taken", told=[told, step, at])

    def scan(self, end: End | None = None) -> None:
        """Seals what is due. With an `end` no trainer runs, so nothing changes any more.

        A failure of storage is told and tried again later; with an `end` it is raised.
        """
        now, self.sealing_s = self.clock(), 0.0
        if now < self._retry_at:
            return
        try:
            self._list()
            paths = {*self._found.paths, *(one.path for one in self.series.recent), *self.told}
            for path in sorted(paths, key=_by_step):
                self._consider(path, end)
            if self._retry_at or self._is_first:
                self.tell("well")
            self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        except (OSError, Refused) as problem:
            if end is not None:
                raise
            self.tell("trouble", message=str(problem))
            self._retry_at, self._retry_s = self.clock() + self._retry_s, min(LAST_RETRY_S, 2 * self._retry_s)
        finally:
            self._is_first = False

    def _list(self) -> None:
        self._found = self.place.found()
        for link in self._found.links:
            self._refuse(link, "it is a symbolic link, which is never followed")
        for path, why in self._found.refused.items():
            self._refuse(path, why)
        numbers = Counter(number for path in self._found.paths for number in steps_in(path.name))
        self._repeated = frozenset(number for number, count in numbers.items() if count > 1)

    def _consider(self, path: Path, end: End | None) -> None:
        try:
            if not self._may_be_new(path):
                return
            one = look_at(path)
            seen = self.series.note(one, has_pauses=not self.tells)
            if one.mark in self.series.known:
                self._taken(path)
                return
            if seen.has_missed and not (self.tells or self._is_reported(one)):
                self._refuse(path, MISSED, is_newest=True)
            if end is not None:
                self._take(seen, "" if self._is_whole(seen, end) else UNSURE, is_at_rest=True)
            elif self._is_due(seen):
                self._take(seen)
        except FileNotFoundError:
            self.series.forget(path)
            if path in self.told:
                self._taken(path)
                self._refuse(path, "it is not there", is_newest=True)
        except (DataError, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno not in OF_ONE_PATH:
                raise
            self._refuse(path, str(problem), is_newest=path in self.told or self._changed_late(path))

    def _may_be_new(self, path: Path) -> bool:
        """Returns whether a path is worth a look inside: hundreds of old ones must cost nothing."""
        if path in self.told or any(one.path == path for one in self.series.recent):
            return True
        step, newest = step_in(path.name), self.series.newest
        return (step is not None and (newest is None or step > newest.number)) or self._changed_late(path)

    def _changed_late(self, path: Path) -> bool:
        """Returns whether a path itself was changed after the newest sealed save."""
        newest = self.series.newest
        return os.lstat(path).st_ctime > (newest.saved_at if newest is not None else self.place.begun)

    def _is_told(self, one: Outside) -> bool:
        """Returns whether the trainer told this state; one written since has a word of its own soon."""
        return one.path in self.told and one.saved_at <= self.told[one.path][2]

    def _is_reported(self, one: Outside) -> bool:
        """Returns whether the trainer says of saves of this kind when they are whole."""
        alike = [save for save in self.series.recent if save.is_of(one)]
        # A save of this launch without a word: it says so no more, or of its save at a stop alone.
        is_silent = any(save.launch == self.launch and not save.written.is_told for save in alike)
        return one.path in self.told or (_is_any_told(alike) and not is_silent)

    def _has_next(self, one: Outside) -> bool:
        """Returns whether the trainer has begun its next save, so that this one is over."""
        step, name = step_in(one.path.name) or 0, form(one.path.name)
        others = (path for path in self._found.paths if path != one.path and form(path.name) == name)
        later = (path for path in others if (step_in(path.name) or 0) >= step)
        return any(os.lstat(path).st_mtime > one.saved_at for path in later)

    def _is_due(self, seen: PathState) -> bool:
        """Returns whether a running trainer's state is whole, as far as one can know."""
        one = seen.one
        if self._is_told(one):
            return True
        if self.tells or self.is_saving or (self._is_reported(one) and not self._has_next(one)):
            return False  # it says when it is whole
        is_heard = self.heard.covers(one.saved_at) or time.time() - one.saved_at >= LAG_S
        return is_heard and self.clock() - seen.since >= self.series.wait_s(seen)

    def _is_whole(self, seen: PathState, end: End) -> bool:
        """Returns whether something shows that a state which an ended trainer has left is whole."""
        one, newest = seen.one, self.series.newest
        if end.is_clean or self._is_told(one) or self.series.shows_end(one):
            return True
        before, here = (
            self.series.of_kind(one),
            [save for save in self.series.recent if save.path == one.path],
        )
        # In a path that is written again and again, a save without a word may have been half itself.
        is_doubtful = one.path in self.told or _is_any_told(here)
        is_known = before is not None and (before.written.is_told or not is_doubtful)
        if is_known and self.series.is_like_before(one) and not self.series.has_grown(one):
            return True
        if before is None and one.kind == "file" and end.is_by_itself:
            return True  # nobody killed it in the middle of a write
        if self._has_next(one):
            return True
        tells = self.tells or end.was_saving or (newest is not None and newest.written.is_told)
        tells = tells or self._is_reported(one)
        return not tells and end.alive_at - one.saved_at >= self.series.wait_s(seen)

    def _take(self, seen: PathState, why_unsure: str = "", *, is_at_rest: bool = False) -> None:
        one, newest = seen.one, self.series.newest
        is_newest = newest is None or one.saved_at > newest.saved_at
        why = why_not_whole(one) or why_unsure
        if one.saved_at < self.place.begun <= time.time():  # not where the clock was set back since
            why, is_newest = "it is older than the run, which has not made it", False
        if why:
            self.unsure += [one.path] if why == why_unsure else []
            self._refuse(one.path, why, is_newest=is_newest)
            return
        step, replaces = self._step(seen)
        is_passed = (
            newest is not None and None not in (step, newest.step) and (step or 0) <= (newest.step or 0)
        )
        is_named = step is not None and not is_passed and step in steps_in(one.path.name)
        others = [save for save in self.series.recent if save.path != one.path]
        if not is_named and is_copy(one, others, self.progress):
            self._know(one)
        elif is_passed and replaces is None and newest is not None:
            self._know(one)
            if is_newest:
                self._refuse(one.path, _passed(newest, step), is_newest=step != newest.step)
        else:
            self._try_to_seal(seen, step, replaces, is_at_rest=is_at_rest)

    def _step(self, seen: PathState) -> tuple[int | None, SealedSave | None]:
        """Returns the step of a state, None where nobody knows it, and the sealed save that it replaces."""
        one, newest = seen.one, self.series.newest
        if (half := self.series.half_of(one)) is not None and not self._is_told(one):
            return half.step, half
        told = self.told[one.path][1] if self._is_told(one) else None
        step = told if told is not None else self.series.step_of(seen, self.heard, self._repeated)
        if newest is None or newest.path != one.path:
            return step, None
        # What the glob found of this launch before its first word may be half, and of another step.
        is_guess = told is not None and newest.launch == self.launch and not newest.written.is_told
        return step, newest if is_guess or (step is not None and step == newest.step) else None

    def _try_to_seal(
        self, seen: PathState, step: int | None, replaces: SealedSave | None, *, is_at_rest: bool
    ) -> None:
        try:
            self.seal(seen, step, replaces)
            self._taken(seen.one.path)
        except Transient:  # it changes, or what it replaces is being read
            if is_at_rest:
                raise
            seen.since = self.clock()

    def seal(self, seen: PathState, step: int | None, replaces: SealedSave | None = None) -> Path:
        """Seals a path's state as a step, or as the next number without one; raises as `seal_outside`."""
        began, one, room = self.clock(), seen.one, None
        number = self.series.number_of(seen, step, self.heard, replaces)
        if replaces is not None:
            room = replaces.sealed, self.place.replaced / f"{replaces.sealed.name}-{new_id()}"
        logs = {name: path.read_bytes() if path.exists() else b"" for name, path in self.logs.items()}
        known: dict[str, Any] = {"step": step, "told": self._is_told(one), "launch": self.launch}
        known |= {"began_ns": seen.written.began_ns, "pause_s": round(seen.written.pause_s, 3)}
        sealed = seal_outside(
            one,
            self.place.checkpoints,
            {**self.body, **self.heard.values(number), "step": number},
            known,
            directory=self.place.directory,
            logs=logs,
            replaces=room,
            progress=self.progress,
        )
        if replaces is not None:
            left = sorted(self.place.replaced.iterdir(), key=lambda path: path.stat().st_ctime)
            drop_first(left, keep=KEPT_REPLACED, keep_bytes=sys.maxsize)
        self.series.add(sealed, replaces)
        self.sealed.append(number)
        self._refused.pop(one.path, None)
        self.sealing_s += (seconds := self.clock() - began)
        size = sum(file.size for file in one.files.values())
        words = {"step": step, "name": sealed.sealed.name, "path": shown(one.path), "bytes": size}
        self.tell("sealed", **words, seconds=round(seconds, 3), replaced=replaces and replaces.sealed.name)
        return sealed.sealed

    def seal_origin(self, path: Path) -> None:
        """Seals the path that a new run begins with."""
        one = look_at(path)
        if why := why_not_whole(one):
            raise DataError(f"train.init_from: {why}; name a checkpoint that is whole")
        self.seal(self.series.note(one, has_pauses=False), step_in(path.name) or 0)

    def _know(self, one: Outside) -> None:
        self.series.known.add(one.mark)
        self._taken(one.path)

    def _taken(self, path: Path) -> None:
        """Tells that a told path needs no further look."""
        if path in self.told:
            self.tell("taken", told=list(self.told.pop(path)))

    def _refuse(self, path: Path, why: str, *, is_newest: bool = False) -> None:
        """Tells once why a path is not sealed; `is_newest`: no later save of the trainer is."""
        if self._refused.get(path) != why:
            self._refused[path] = why
            self.tell("refused", path=shown(path), reason=why, is_newest=is_newest)


def _is_any_told(saves: Iterable[SealedSave]) -> bool:
    # One of several: the word on a save is lost where its supervisor is killed before it.
    return any(save.written.is_told for save in saves)


def _by_step(path: Path) -> tuple[bool, int, Path]:
    """Sorts paths by the steps in their names; those without come last, as a link or copy of another may."""
    step = step_in(path.name)
    return step is None, step or 0, path


def _passed(newest: SealedSave, step: int | None) -> str:
    if step == newest.step:
        folder = "give a checkpoint of several files a directory of its own"
        return f"{shown(newest.path)} of the same step {step} is sealed; {folder}"
    return f"it is of step {step}, and step {newest.step} is sealed already: did the trainer start over?"
