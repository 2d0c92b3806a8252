"""The saves of one trainer, sealed and seen: how long one must be still until it is over, and its step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoints.external.find import Outside
from stoker.checkpoints.external.names import says_step, steps_in
from stoker.checkpoints.external.saves import (
    SealedSave,
    Written,
    form,
    goes_on,
    has_all,
    sizes_of,
    written_since,
)
from stoker.checkpoints.external.step_reports import StepReports
from stoker.checkpoints.external.whole import shows_end

RECENT = 8  # sealed saves whose paths are looked into although they are old: a look must cost little
LAG_S = 2.5  # until what the trainer printed before a save is heard: it is read once a second
PAUSES = 2.0  # times the longest pause within a save: the next one may be longer
GROWN = 1.01  # times the save before: weights keep their size, and a pickled step adds some bytes
LONGEST_PAUSE = 10.0  # times the quiet time: what comes later is another save


@dataclass
class PathState:
    """The state of a path, since when it is the same, and the save that it is of."""

    one: Outside
    since: float
    written: Written
    has_missed: bool = False  # the save before was whole and is not sealed


class Series:
    """The sealed saves, the oldest first, and the states of paths as they were seen last.

    `known` are the marks of states that are sealed or never will be. `quiet_s` and, of a save that is like
    none before it, `first_quiet_s` are the shortest times without a change after which it is over.
    """

    def __init__(
        self,
        saves: list[SealedSave],
        given_up: set[str],
        quiet_s: float,
        first_quiet_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.saves, self.quiet_s, self._first_quiet_s, self._clock = saves, quiet_s, first_quiet_s, clock
        self.known = given_up | {one.mark for one in saves}
        self.pause_s = max((one.written.pause_s for one in saves), default=0.0)  # the longest within a save
        self._seen: dict[Path, PathState] = {}
        self._whole: dict[str, Mapping[str, int]] = {}  # what the last save wrote, by the form of its name

    @property
    def newest(self) -> SealedSave | None:
        return self.saves[-1] if self.saves else None

    @property
    def recent(self) -> list[SealedSave]:
        return self.saves[-RECENT:]

    def of_path(self, path: Path) -> SealedSave | None:
        """Returns the newest sealed save of a path."""
        return next((one for one in reversed(self.saves) if one.path == path), None)

    def half_of(self, one: Outside) -> SealedSave | None:
        """Returns the sealed save of which a path's state has more: it was not over when it was sealed."""
        before = self.of_path(one.path)
        return before if before and before.goes_on_in(one, LONGEST_PAUSE * self.quiet_s) else None

    def note(self, one: Outside, *, has_pauses: bool) -> PathState:
        """Returns what is known of a path's state; with `has_pauses` notes how long its save paused."""
        seen, half = self._seen.get(one.path), self.half_of(one)
        if seen is not None and seen.one.mark == one.mark:
            return seen
        written = written_since(self.of_path(one.path), one) or one.files
        began_ns, has_missed = min(state.mtime_ns for state in written.values()), False
        pause_s, was_saved_at = 0.0, one.saved_at
        if half is not None:
            earlier, was_saved_at = half.written, half.saved_at
        elif seen is not None and seen.one.mark not in self.known and goes_on(seen.one, seen.written, one):
            earlier, was_saved_at = seen.written, seen.one.saved_at
        else:
            earlier = Written(began_ns)
            if seen is not None:  # over, or the next one would not have begun
                self._whole[form(one.path.name)] = sizes_of(seen.one, seen.written)
                has_missed = seen.one.mark not in self.known
        if has_pauses and 0 < one.saved_at - was_saved_at <= LONGEST_PAUSE * self.quiet_s:
            pause_s = one.saved_at - was_saved_at
            self.pause_s = max(self.pause_s, pause_s)
        written_now = Written(min(began_ns, earlier.began_ns), max(earlier.pause_s, pause_s))
        self._seen[one.path] = PathState(one, self._clock(), written_now, has_missed)
        return self._seen[one.path]

    def forget(self, path: Path) -> None:
        """Forgets the state of a path that is gone."""
        self._seen.pop(path, None)

    def add(self, save: SealedSave, replaced: SealedSave | None) -> None:
        """Adds a save that was sealed, in the place of another."""
        self.saves = sorted(
            [*(one for one in self.saves if one is not replaced), save], key=lambda one: one.number
        )
        self.known.add(save.mark)

    def wait_s(self, seen: PathState) -> float:
        """Returns how long a state must not change before its save counts as over."""
        one = seen.one
        is_known = self.half_of(one) or self.is_like_before(one) or self.shows_end(one)
        return max(self.quiet_s if is_known else self._first_quiet_s, PAUSES * self.pause_s)

    def is_like_before(self, one: Outside) -> bool:
        """Returns whether a state has all that the newest save of its kind wrote."""
        before, whole = self.of_kind(one), self._whole.get(form(one.path.name))
        if whole is None and before is not None:
            whole = {name: size for name, (size, _) in before.own.items()}
        return whole is not None and has_all(whole, written_since(self.of_path(one.path), one))

    def has_grown(self, one: Outside) -> bool:
        """Returns whether a file is longer than the save before: half of it may be as long as all of that."""
        before = self.of_kind(one) if one.kind == "file" else None
        return before is not None and _bytes(one) > GROWN * sum(size for size, _ in before.own.values())

    def of_kind(self, one: Outside) -> SealedSave | None:
        """Returns the newest sealed save of the same path, or of a name that differs by numbers alone."""
        return next((save for save in reversed(self.saves) if save.is_of(one)), None)

    def shows_end(self, one: Outside) -> bool:
        """Returns whether what is written last is there, and not left of a save before."""
        return (one.kind == "file" or self.of_path(one.path) is None) and shows_end(one)

    def step_of(self, seen: PathState, heard: StepReports, repeated: Collection[int]) -> int | None:
        """Returns the step of a state that was not told; None where nobody knows it.

        It is in its name, where that agrees with what the trainer told or printed meanwhile; or what it had
        told by then. Where nothing was, a number that another match has, too (`repeated`), or an earlier
        state of the path, is no step.
        """
        one, numbers = seen.one, steps_in(seen.one.path.name)
        taken = {other.step for other in self.saves if other.path != one.path}
        names = (number for number in numbers if number not in taken and number not in repeated)
        is_sure = says_step(one.path.name) or (not heard and self.of_path(one.path) is None)
        step = next(names, None) if is_sure else None
        return (
            heard.step_of(numbers, step, seen.written.began_ns / 1e9 - LAG_S, one.saved_at) if heard else step
        )

    def number_of(
        self, seen: PathState, step: int | None, heard: StepReports, replaces: SealedSave | None
    ) -> int:
        """Returns the number in the sealed directory's name: the step, or at least what was made by then."""
        if replaces is not None and step in (None, replaces.step):
            return replaces.number
        others = [save.number for save in self.saves if save is not replaces]
        bounds = heard.bounds(seen.one.saved_at) if step is None else None
        return max(others[-1] + 1 if others else 0, bounds.least if bounds is not None else 0, step or 0)


def _bytes(one: Outside) -> int:
    return sum(file.size for file in one.files.values())
