"""The steps that a trainer of the user's own told or printed, and which of them a save can be of.

A step is the newest one from the moment when it was printed to the last look at an output that has not
changed since. Between two such spans only bounds are known: a guess within them would be a wrong step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_HEARD = 512  # words of the trainer that are kept, at most one a second

# Since when it is the newest and until when surely, Unix time; step, tokens, loss, val_loss.
StepReport = tuple[float, float, Mapping[str, Any]]


@dataclass(frozen=True)
class Bounds:
    """The least and the most steps that were made at a moment; no most where nothing was heard since."""

    least: int
    most: int | None

    @property
    def step(self) -> int | None:
        """The step, where only one is possible."""
        return self.least if self.least == self.most else None


class StepReports:
    """The newest words of the trainer, the oldest first."""

    def __init__(self, heard: Iterable[StepReport] = ()) -> None:
        self._heard = deque[StepReport](heard, MOST_HEARD)

    def append(self, one: StepReport) -> None:
        """Adds the newest word, or until when it is still the newest."""
        since, until, told = one
        if self._heard and self._heard[-1][2] == told:
            since, *_ = self._heard.pop()
        self._heard.append((since, until, told))

    @property
    def newest(self) -> StepReport | None:
        return self._heard[-1] if self._heard else None

    def __iter__(self) -> Iterator[StepReport]:
        return iter(self._heard)

    def __bool__(self) -> bool:
        return bool(self._heard)

    def bounds(self, moment: float) -> Bounds | None:
        """Returns the bounds at a moment (Unix time); None where no step is known from before it."""
        least: int | None = None
        for since, until, told in self._heard:
            if since > moment:
                return None if least is None else Bounds(least, max(least, int(told["step"])))
            least = int(told["step"])
            if until >= moment:
                return Bounds(least, least)
        return None if least is None else Bounds(least, None)

    def covers(self, moment: float) -> bool:
        """Returns whether all is heard that was told or printed by a moment."""
        return self.newest is None or self.newest[1] >= moment

    def step_of(self, numbers: Sequence[int], called: int | None, begun: float, moment: float) -> int | None:
        """Returns the step of a save from `begun` to `moment`; None where more than one is possible.

        Of the `numbers` in its name the first that agrees with what was heard: a trainer that logs each
        hundredth step saves in between, and one that counts from 0 names one more. Else the one that the
        name has `called` a step: what is read of the output may count something else.
        """
        bounds, early = self.bounds(moment), self.bounds(begun)
        if bounds is None:
            return called
        steps = [int(told["step"]) for *_, told in self._heard]
        apart = max((after - before for before, after in itertools.pairwise(steps)), default=steps[0])
        least = early.least if early is not None else min(steps)
        most = bounds.least + max(1, apart)
        if bounds.most is not None and bounds.most > bounds.least:
            most = bounds.most + 1
        agreeing = (number for number in numbers if least <= number <= most)
        is_vague = bool(numbers) and len(steps) == 1  # nobody knows how far apart its words are
        return next(agreeing, bounds.step if called is None and not is_vague else called)

    def values(self, step: int) -> Mapping[str, Any]:
        """Returns what the trainer told at a step, or last before it."""
        return next((told for *_, told in reversed(self._heard) if told["step"] <= step), {})
