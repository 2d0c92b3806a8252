"""Seals what a trainer of the user's own saves: which of its paths, as which step, and when.

A path that the trainer tells is sealed at once; one that the glob matches once names, sizes and times have
not changed for long enough, but not of a launch that tells its checkpoints. A state is known by its mark once
it is sealed, was given up by a rollback or was set aside: it is not sealed again. Another state of the newest
path at the same step replaces the sealed one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints.external.find import OF_ONE_PATH, Outside, Refused, look_at, shown
from stoker.checkpoints.external.heard import HeardSteps
from stoker.checkpoints.external.names import says_step, step_in, steps_in
from stoker.checkpoints.external.place import Place
from stoker.checkpoints.external.saves import SealedSave, Written, form, written_since
from stoker.checkpoints.external.sealing import is_copy, seal_outside
from stoker.checkpoints.external.whole import shows_end, why_not_whole
from stoker.store.direct import Progress
from stoker.store.errors import DataError, Transient
from stoker.store.files import drop_first
from stoker.store.record import new_id

RECENT = 8  # sealed saves whose paths are looked into although they are old: a look must cost little
FIRST_RETRY_S, LAST_RETRY_S = 10.0, 60.0
LAG_S = 2.5  # until what the trainer printed before a save is heard: it is read once a second
PAUSES = 2.0  # times the longest pause within a save: the next one may be longer
UNKNOWN = 3.0  # times the quiet of a directory that is like none before it
LONGEST_PAUSE = 10.0  # times the quiet time: what comes later is another save
KEPT_REPLACED = 1
FOLDER = "give a checkpoint of several files a directory of its own"


@dataclass(frozen=True)
class End:
    """How the launch ended whose saves are looked at, as far as it is known."""

    is_clean: bool = False  # by itself or when asked, with exit code 0
    was_saving: bool = False  # as it said last
    alive_at: float = 0.0  # Unix time when it was surely alive: the last sign of it


@dataclass
class _Seen:
    """The state of a path, since when it is the same, and the save that it is of."""

    one: Outside
    since: float
    written: Written


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
    heard: HeardSteps = field(default_factory=HeardSteps)
    quiet_s: float = 5.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.saves = self.place.sealed()
        self.known = self.place.given_up_marks() | {one.mark for one in self.saves}
        # Not sealed yet: as it was told, its step, and when that was.
        self.told: dict[Path, tuple[str, int | None, float]] = {}
        self.tells = any(one.written.is_told and one.launch == self.launch for one in self.saves)
        self.is_saving = False  # the trainer says so
        self.sealing_s = 0.0  # of the last look
        self._seen: dict[Path, _Seen] = {}
        self._refused: dict[Path, str] = {}
        self._repeated = frozenset[int]()
        self._begun = dict[Path, float]()
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self.is_first = True
        self.sealed: list[int] = []
        self.unsure: list[Path] = []  # that an ended trainer may have left half

    @property
    def newest(self) -> SealedSave | None:
        """The newest sealed save."""
        return self.saves[-1] if self.saves else None

    def hear(self, told: str, step: int | None, at: float) -> None:
        """Takes in a path that the trainer says is complete, its step, and the Unix time when it said so."""
        self.tells = True
        try:
            self.told[self.place.checked(told)] = told, step, at
        except (Refused, OSError) as problem:
            self.tell("refused", path=shown(Path(told)), reason=str(problem), is_newest=True)
            self.tell("taken", told=[told, step, at])

    def look(self, end: End | None = None) -> None:
        """Seals what is due. With an `end` no trainer runs, so nothing changes any more.

        A failure of storage is told and tried again later; with an `end` it is raised.
        """
        now, self.sealing_s = self.clock(), 0.0
        if now < self._retry_at:
            return
        try:
            found = self.place.found()
            for link in found.links:
                self._refuse(link, "it is a symbolic link, which is never followed")
            for path, why in found.refused.items():
                self._refuse(path, why)
            numbers = Counter(number for path in found.paths for number in steps_in(path.name))
            self._repeated = frozenset(number for number, count in numbers.items() if count > 1)
            self._begun = {path: os.lstat(path).st_mtime for path in found.paths} if end is not None else {}
            for path in sorted(
                {*found.paths, *(one.path for one in self._recent()), *self.told}, key=_by_step
            ):
                self._consider(path, end)
            if self._retry_at or self.is_first:
                self.tell("well")
            self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        except (OSError, Refused) as problem:
            if end is not None:
                raise
            self.tell("trouble", message=str(problem))
            self._retry_at, self._retry_s = self.clock() + self._retry_s, min(LAST_RETRY_S, 2 * self._retry_s)
        finally:
            self.is_first = False

    def _recent(self) -> list[SealedSave]:
        return self.saves[-RECENT:]

    def _consider(self, path: Path, end: End | None) -> None:
        try:
            if not self._may_be_new(path):
                return
            one = look_at(path)
            seen = self._note(one)
            if one.mark in self.known:
                self._taken(path)
            elif end is not None:
                self._take(seen, self._why_unsure(seen, end), is_at_rest=True)
            elif self._is_due(seen):
                self._take(seen)
        except FileNotFoundError:
            self._seen.pop(path, None)
            if path in self.told:
                self._taken(path)
                self._refuse(path, "it is not there", is_newest=True)
        except (DataError, OSError) as problem:
            if isinstance(problem, OSError) and problem.errno not in OF_ONE_PATH:
                raise
            self._refuse(path, str(problem), is_newest=path in self.told or self._changed_late(path))

    def _may_be_new(self, path: Path) -> bool:
        """Returns whether a path is worth a look inside: hundreds of old ones must cost nothing."""
        if path in self.told or any(one.path == path for one in self._recent()):
            return True
        step = step_in(path.name)
        is_further = step is not None and (self.newest is None or step > self.newest.number)
        return is_further or self._changed_late(path)

    def _changed_late(self, path: Path) -> bool:
        """Returns whether a path itself was changed after the newest sealed save."""
        since = self.newest.saved_at if self.newest is not None else self.place.begun
        return os.lstat(path).st_ctime > since

    def _note(self, one: Outside) -> _Seen:
        """Returns what is known of a path's state; notes how long a save pauses."""
        seen, before = self._seen.get(one.path), self._sealed_at(one.path)
        if seen is not None and seen.one.mark == one.mark:
            return seen
        written = written_since(before, one) or dict(one.files)
        begun = Written(min(state.mtime_ns for state in written.values()))
        if before is not None and before.goes_on_in(one, self._longest_s):
            earlier, was_saved_at = before.written, before.saved_at
        elif seen is not None and seen.one.mark not in self.known:
            earlier, was_saved_at = seen.written, seen.one.saved_at
        else:
            earlier, was_saved_at = begun, one.saved_at
        pause_s = one.saved_at - was_saved_at
        pause_s = pause_s if 0 < pause_s <= self._longest_s and not self.tells else 0.0
        written_now = Written(min(begun.began_ns, earlier.began_ns), max(earlier.pause_s, pause_s))
        self._seen[one.path] = _Seen(one, self.clock(), written_now)
        return self._seen[one.path]

    @property
    def _longest_s(self) -> float:
        return LONGEST_PAUSE * self.quiet_s

    def _sealed_at(self, path: Path) -> SealedSave | None:
        """Returns the newest sealed save of a path."""
        return next((one for one in reversed(self.saves) if one.path == path), None)

    def _is_due(self, seen: _Seen) -> bool:
        """Returns whether a running trainer's state is whole, as far as one can know."""
        one = seen.one
        if self._is_told(one):
            return True
        before = self._sealed_at(one.path)
        if self.tells or self.is_saving or (before is not None and before.written.is_told):
            return False  # it says when it is whole
        is_heard = self.heard.covers(one.saved_at) or time.time() - one.saved_at >= LAG_S
        return is_heard and self.clock() - seen.since >= self._wait_s(seen)

    def _wait_s(self, seen: _Seen) -> float:
        """Returns how long a state must not change before its save counts as over."""
        pauses = [seen.written.pause_s, *(one.written.pause_s for one in self.saves)]
        wait_s = max(self.quiet_s, PAUSES * max(pauses))
        one, before = seen.one, self._sealed_at(seen.one.path)
        goes_on = before is not None and before.goes_on_in(one, self._longest_s)
        is_known = one.kind == "file" or goes_on or self._is_like_before(seen) or self._shows_end(one)
        return wait_s if is_known else UNKNOWN * wait_s

    def _why_unsure(self, seen: _Seen, end: End) -> str:
        """Returns why a state that an ended trainer has left may be half; "" where it is whole."""
        one = seen.one
        if end.is_clean or self._is_told(one) or self._shows_end(one) or self._is_like_before(seen):
            return ""
        if any(
            at > one.saved_at and form(path.name) == form(one.path.name) for path, at in self._begun.items()
        ):
            return ""  # the trainer went on to its next save
        is_silent = not (
            self.tells or end.was_saving or (self.newest is not None and self.newest.written.is_told)
        )
        if is_silent and end.alive_at - one.saved_at >= self._wait_s(seen):
            return ""
        return (
            "its trainer ended while it was written or soon after, and nothing shows that it is whole; the "
            "run goes on from the one before"
        )

    def _is_like_before(self, seen: _Seen) -> bool:
        """Returns whether a state has all that the newest save of its kind wrote."""
        before = self._sealed_at(seen.one.path)
        written = written_since(before, seen.one)
        return next((one.is_like(written) for one in reversed(self.saves) if one.is_of(seen.one)), False)

    def _shows_end(self, one: Outside) -> bool:
        """Returns whether what is written last is there, and not left of a save before."""
        return (one.kind == "file" or self._sealed_at(one.path) is None) and shows_end(one)

    def _is_told(self, one: Outside) -> bool:
        """Returns whether the trainer told this state; one written since has a word of its own soon."""
        return one.path in self.told and one.saved_at <= self.told[one.path][2]

    def _take(self, seen: _Seen, why_unsure: str = "", *, is_at_rest: bool = False) -> None:
        one, newest = seen.one, self.newest
        is_newest = newest is None or one.saved_at > newest.saved_at
        why = why_not_whole(one) or why_unsure
        if one.saved_at < self.place.begun <= time.time():  # not where the clock was set back since
            why, is_newest = "it is older than the run, which has not made it", False
        if why:
            self.unsure += [one.path] if why == why_unsure else []
            self._refuse(one.path, why, is_newest=is_newest)
            return
        step, is_same = self._step(seen)
        replaces = newest if newest is not None and is_same and newest.path == one.path else None
        is_passed = (
            newest is not None and step is not None and newest.step is not None and step <= newest.step
        )
        others = [save for save in self._recent() if save.path != one.path]
        is_further = step is not None and not is_passed and step in steps_in(one.path.name)
        if not is_further and is_copy(one, others, self.progress):
            self._know(one)
        elif is_passed and replaces is None and newest is not None and step is not None:
            self._know(one)
            if is_newest:
                self._refuse(one.path, _passed(newest, step), is_newest=step != newest.step)
        else:
            self._seal_seen(seen, step, replaces, is_at_rest=is_at_rest)

    def _know(self, one: Outside) -> None:
        self.known.add(one.mark)
        self._taken(one.path)

    def _seal_seen(
        self, seen: _Seen, step: int | None, replaces: SealedSave | None, *, is_at_rest: bool
    ) -> None:
        try:
            self.seal(seen, step, replaces)
            self._taken(seen.one.path)
        except Transient:  # it changes, or what it replaces is being read
            if is_at_rest:
                raise
            seen.since = self.clock()

    def _step(self, seen: _Seen) -> tuple[int | None, bool]:
        """Returns the step of a state, None where nobody knows it, and whether the newest sealed one has it.

        Told with it; in its name, where that agrees with what the trainer told or printed meanwhile; or what
        it had told by then. Where nothing was, a number that another match has, too, or an earlier state of
        the path, is no step.
        """
        one, newest = seen.one, self.newest
        told = self.told[one.path][1] if self._is_told(one) else None
        if told is not None:
            is_guess = newest is not None and newest.launch == self.launch and not newest.written.is_told
            return told, newest is not None and (told == newest.step or is_guess)
        if newest is not None and newest.goes_on_in(one, self._longest_s):
            return newest.step, True
        numbers = steps_in(one.path.name)
        taken = {other.step for other in self.saves if other.path != one.path} | self._repeated
        names = [number for number in numbers if number not in taken]
        is_sure = says_step(one.path.name) or (not self.heard and self._sealed_at(one.path) is None)
        step = next(iter(names), None) if is_sure else None
        if self.heard:
            began = seen.written.began_ns / 1e9 - LAG_S
            step = self.heard.step_of(numbers, step, began, one.saved_at)
        return step, newest is not None and step is not None and step == newest.step

    def seal(self, seen: _Seen, step: int | None, replaces: SealedSave | None = None) -> Path:
        """Seals a path's state as a step, or as the next number without one; raises as `seal_outside`."""
        began, one = self.clock(), seen.one
        before = [save for save in self.saves if save is not replaces]
        number = self._number(seen, step, replaces, before[-1].number + 1 if before else 0)
        room = None
        if replaces is not None:
            room = replaces.sealed, self.place.replaced / f"{replaces.sealed.name}-{new_id()}"
        logs = {name: path.read_bytes() if path.exists() else b"" for name, path in self.logs.items()}
        sealed = seal_outside(
            one,
            self.place.checkpoints,
            {**self.body, **self.heard.values(number), "step": number},
            {"step": step, "told": self._is_told(one), "launch": self.launch, **_words(seen.written)},
            directory=self.place.directory,
            logs=logs,
            replaces=room,
            progress=self.progress,
        )
        if replaces is not None:
            left = sorted(self.place.replaced.iterdir(), key=lambda path: path.stat().st_ctime)
            drop_first(left, keep=KEPT_REPLACED, keep_bytes=sys.maxsize)
        self.saves = [*before, sealed]
        self.sealed.append(number)
        self.known.add(one.mark)
        self._refused.pop(one.path, None)
        self.sealing_s += (seconds := self.clock() - began)
        size = sum(file.size for file in one.files.values())
        words = {"step": step, "name": sealed.sealed.name, "path": shown(one.path), "bytes": size}
        self.tell("sealed", **words, seconds=round(seconds, 3), replaced=replaces and replaces.sealed.name)
        return sealed.sealed

    def _number(self, seen: _Seen, step: int | None, replaces: SealedSave | None, least: int) -> int:
        """Returns the number in the sealed directory's name: the step, or at least what was made by then."""
        if step is None and replaces is not None:
            return replaces.number
        if step is None and (bounds := self.heard.bounds(seen.one.saved_at)) is not None:
            return max(least, bounds.least)
        return max(least, step or 0)

    def seal_origin(self, path: Path) -> None:
        """Seals the path that a new run begins with."""
        one = look_at(path)
        if why := why_not_whole(one):
            raise DataError(f"train.init_from: {why}; name a checkpoint that is whole")
        self.seal(self._note(one), step_in(path.name) or 0)

    def _taken(self, path: Path) -> None:
        """Tells that a told path needs no further look."""
        if path in self.told:
            self.tell("taken", told=list(self.told.pop(path)))

    def _refuse(self, path: Path, why: str, *, is_newest: bool = False) -> None:
        """Tells once why a path is not sealed; `is_newest`: no later save of the trainer is."""
        if self._refused.get(path) != why:
            self._refused[path] = why
            self.tell("refused", path=shown(path), reason=why, is_newest=is_newest)


def _by_step(path: Path) -> tuple[bool, int, Path]:
    """Sorts paths by the steps in their names; those without come last, as a link or copy of another may."""
    step = step_in(path.name)
    return step is None, step or 0, path


def _passed(newest: SealedSave, step: int) -> str:
    if step == newest.step:
        return f"{shown(newest.path)} of the same step {step} is sealed; {FOLDER}"
    return f"it is of step {step}, and step {newest.step} is sealed already: did the trainer begin again?"


def _words(written: Written) -> dict[str, Any]:
    return {"began_ns": written.began_ns, "pause_s": round(written.pause_s, 3)}
