"""The loss watch: whether a run's loss spikes, diverges or stands still, by the losses of its steps alone.

It reads each step of the run's history once, in order, and remembers the last 512 finite losses, and one
median for each 512. A loss of NaN is no loss here: what follows it is another matter (`policy`).

Noise is measured by the median absolute deviation: times 1.4826 it is the standard deviation of a normal
distribution, and one outlier in two does not move it (Rousseeuw and Croux 1993).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

Kind = Literal["spike", "diverged", "plateau"]
KINDS: tuple[Kind, ...] = get_args(Kind)

WINDOW = 512  # finite losses whose median and deviation a step is compared with
LEAST = 64  # of them before a spike is told: the deviation is then known to about a tenth
SIGMA = 1.4826  # standard deviations in a median absolute deviation

# A spike. Of normal noise one step in a billion is six deviations up; of Student's t with three degrees of
# freedom, far heavier than the tails of a mean over a batch, three in a row are one in 30 million. On a steep
# descent the deviation is that of the descent, and the losses are under the median. The share keeps a run
# with next to no noise (large batches) from telling of what nobody would call a spike.
SIGMAS, SHARE, HOLD = 6.0, 0.05, 3
HUGE_SIGMAS, HUGE_SHARE = 20.0, 0.5  # told at its first step
CALM = 16  # steps in a row that are no higher end it

# Divergence: the median of 512 steps is this far over the least that there ever was, or the fourth such
# median in a row is higher than the one before by more than noise (its standard error is 0.08 deviations).
FAR_SHARE, FAR_SIGMAS = 0.1, 1.0
RISES, RISE_SIGMAS, RISE_SHARE = 4, 0.25, 0.005

# A plateau: the gain from the first to the second half of the last quarter of the run is under a thousandth
# of the loss, with certainty (three standard errors). Where noise could hide such a gain, nothing is told.
PART, LEAST_BLOCKS, GAIN_SHARE, ERRORS = 4, 16, 0.001, 3.0

Place = Sequence[int]  # [entry, offset] in the plan, of the first window that a step does not read any more


@dataclass(frozen=True)
class Episode:
    """A time in which something is wrong with the loss: its first step, its last one (of a spike: that was
    high), the step at which it was told, and the loss and the median there; `limit` ends a spike."""

    kind: Kind
    first: int
    last: int
    step: int
    loss: float
    median: float
    limit: float = math.inf
    begins: Place | None = None  # where the windows of its steps begin and end
    ends: Place | None = None

    def words(self) -> dict[str, Any]:
        """Returns what is told of it."""
        numbers = {"loss": round(self.loss, 4), "median": round(self.median, 4)}
        place = {"windows": [list(self.begins), list(self.ends)]} if self.begins and self.ends else {}
        return {"step": self.step, "first": self.first, "last": self.last, **numbers, **place}


@dataclass(frozen=True)
class Change:
    """The begin of an episode, or its end, at a step with this loss."""

    episode: Episode
    is_end: bool = False
    step: int = 0
    loss: float = 0.0


class LossWatch:
    """The state after the steps so far; `standing` are the episodes that have not ended."""

    def __init__(self) -> None:
        self.standing: dict[Kind, Episode] = {}
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []
        self._count = 0  # finite losses so far
        self._blocks: list[float] = []  # medians, each of 512 losses
        self._ends = [0]  # the steps at which they ended
        self._rises = 0
        self._best = math.inf  # the least median of 512 losses
        self._place: Place | None = None  # after the last step
        self._high: list[tuple[int, Place | None]] = []  # steps in a row, and where their windows begin
        self._calm = 0

    @property
    def median(self) -> float:
        """The median of the last 512 finite losses; there must be one."""
        middle = len(self._sorted) // 2
        is_odd = len(self._sorted) % 2
        return self._sorted[middle] if is_odd else (self._sorted[middle - 1] + self._sorted[middle]) / 2

    def add(self, step: int, loss: float | None, place: Place | None = None) -> list[Change]:
        """Takes in the next step; returns what begins and ends with it. `place` is that after the step."""
        before, self._place = self._place, place
        if loss is None or not math.isfinite(loss):
            return []
        found = self._look_for_spike(step, loss, before)
        self._take(loss)
        if self._count >= WINDOW:
            if is_block := self._count % WINDOW == 0:
                self._end_block(step)
            found += self._look_for_divergence(step, loss, is_block=is_block)
            found += self._look_for_plateau(step, loss) if is_block else []
        return found

    def _take(self, loss: float) -> None:
        if len(self._losses) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._losses[0])]
        self._losses.append(loss)
        insort(self._sorted, loss)
        self._count += 1
        if self._count >= WINDOW:
            self._best = min(self._best, self.median)

    def _sigma(self) -> float:
        median = self.median
        away = sorted(abs(loss - median) for loss in self._sorted)
        return SIGMA * away[len(away) // 2]

    def _look_for_spike(self, step: int, loss: float, before: Place | None) -> list[Change]:
        if (spike := self.standing.get("spike")) is not None:
            return self._follow_spike(spike, step, loss)
        if len(self._sorted) < LEAST:
            return []
        median, excess = self.median, loss - self.median
        sigma = self._sigma() if excess > SHARE * abs(median) else math.inf
        if excess <= max(SIGMAS * sigma, SHARE * abs(median)):
            self._high = []
            return []
        self._high.append((step, before))
        is_huge = excess > max(HUGE_SIGMAS * sigma, HUGE_SHARE * abs(median))
        if len(self._high) < HOLD and not is_huge:
            return []
        (first, begins), self._high, self._calm = self._high[0], [], 0
        limit = median + max(SIGMAS * sigma, SHARE * abs(median))
        return self._begin(Episode("spike", first, step, step, loss, median, limit, begins, self._place))

    def _follow_spike(self, spike: Episode, step: int, loss: float) -> list[Change]:
        """A loss that stays high for as long as anything is remembered is the loss now: `diverged` tells."""
        self._calm = self._calm + 1 if loss <= spike.limit else 0
        if not self._calm:
            self.standing["spike"] = replace(spike, last=step, ends=self._place)
        is_over = self._calm >= CALM or step - spike.first >= WINDOW
        return self._end("spike", step, loss) if is_over else []

    def _end_block(self, step: int) -> None:
        median = self.median
        self._ends.append(step)
        if self._blocks:
            before = self._blocks[-1]
            least = max(RISE_SIGMAS * self._sigma(), RISE_SHARE * abs(before))
            self._rises = self._rises + 1 if median > before + least else 0
        self._blocks.append(median)

    def _look_for_divergence(self, step: int, loss: float, *, is_block: bool) -> list[Change]:
        median, best, standing = self.median, self._best, "diverged" in self.standing
        share = FAR_SHARE / 2 if standing else FAR_SHARE
        sigma = self._sigma() if median > best + share * abs(best) else 0.0
        sigmas = FAR_SIGMAS / 2 if standing else FAR_SIGMAS
        is_far = median > best + max(share * abs(best), sigmas * sigma)
        if standing:
            is_over = not is_far and self._rises < RISES
            return self._end("diverged", step, loss) if is_over and is_block else []
        if not is_far and self._rises < RISES:
            return []
        return self._begin(Episode("diverged", step, step, step, loss, best, ends=self._place))

    def _look_for_plateau(self, step: int, loss: float) -> list[Change]:
        window = self._blocks[-max(LEAST_BLOCKS, len(self._blocks) // PART) :]
        if len(window) < LEAST_BLOCKS:
            return []
        half, level = len(window) // 2, GAIN_SHARE * abs(self.median)
        gain = (sum(window[:half]) - sum(window[-half:])) / half
        # Successive differences measure the noise of the medians without their trend (von Neumann 1941).
        square = sum((late - early) ** 2 for early, late in pairwise(window))
        error = math.sqrt(square / (len(window) - 1) / half)
        if "plateau" in self.standing:
            return self._end("plateau", step, loss) if gain - error > level else []
        if "diverged" in self.standing or gain + ERRORS * error >= level:
            return []
        first = self._ends[-len(window) - 1] + 1
        return self._begin(Episode("plateau", first, step, step, loss, self.median))

    def _begin(self, episode: Episode) -> list[Change]:
        self.standing[episode.kind] = episode
        return [Change(episode, step=episode.step, loss=episode.loss)]

    def _end(self, kind: Kind, step: int, loss: float) -> list[Change]:
        return [Change(self.standing.pop(kind), True, step, loss)]
