"""The speed watch: whether a run trains slower than it usually does, by what its steps took.

What is usual is the median tokens a second of all steps of the run with the same tokens a step and the same
micro-batch, of earlier launches too. What is now is the mean of the last ten minutes of stepping: neither
evaluations nor saves nor waits for a plan are in a step's time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SLOW, WELL = 0.7, 0.8  # of the usual speed: slower is slow, until it is faster than the second
SLOW_S, PART_S = 600.0, 120.0  # each part of the time must be slow: a short standstill is none
LEAST_STEPS = 100  # before anything is usual
MOST_SIZES = 8  # of steps, whose speeds are remembered
LEAST_S = 1.0  # shorter steps are counted together, so that ten minutes are some hundred counts
WIDTH = 0.01  # of a class of speeds, as a logarithm: the median is known to one in a hundred

Size = tuple[int, int | None]  # tokens of a step, and windows of a pass


@dataclass(frozen=True)
class Speed:
    """The last ten minutes of stepping; `data_wait_share` of their time was spent waiting for data."""

    tokens_per_s: float
    fastest: float  # of its parts of two minutes, in tokens a second
    usual: float
    data_wait_share: float
    micro_batch: int | None

    @property
    def is_slow(self) -> bool:
        return self.fastest < SLOW * self.usual

    @property
    def is_well(self) -> bool:
        return self.tokens_per_s > WELL * self.usual


@dataclass(frozen=True)
class _Time:
    """A step, or some short ones."""

    seconds: float = 0.0
    tokens: int = 0
    waited_s: float = 0.0

    def __add__(self, other: _Time) -> _Time:
        seconds, tokens = self.seconds + other.seconds, self.tokens + other.tokens
        return _Time(seconds, tokens, self.waited_s + other.waited_s)

    def __sub__(self, other: _Time) -> _Time:
        return self + _Time(-other.seconds, -other.tokens, -other.waited_s)


class SpeedWatch:
    """The speeds of a run's steps so far."""

    def __init__(self) -> None:
        self._classes: dict[Size, Counter[int]] = {}  # the size used last is the last
        self._size: Size = 0, None
        self._last: tuple[int, int] | None = None  # step, and tokens of the run until then
        self._recent: deque[_Time] = deque()

    def add(self, row: Mapping[str, Any], *, is_live: bool) -> None:
        """Takes in the next row; the last minutes are those of rows that came `is_live`."""
        before, tokens, speed = self._last, row.get("tokens"), row.get("tokens_per_s")
        self._last = (row["step"], tokens) if isinstance(tokens, int) else None
        if before is None or self._last is None or row["step"] != before[0] + 1:
            return
        made = self._last[1] - before[1]
        if made <= 0 or not isinstance(speed, int | float) or not 0 < speed < math.inf:
            return
        if (size := (made, row.get("micro_batch"))) != self._size:
            self._size = size
            self._recent.clear()
            self._classes[size] = self._classes.pop(size, Counter())
            for oldest in [*self._classes][:-MOST_SIZES]:
                del self._classes[oldest]
        self._classes[size][math.floor(math.log(speed) / WIDTH)] += 1
        if is_live:
            seconds = made / speed
            step = _Time(seconds, made, min(seconds, float(row.get("data_wait_s") or 0.0)))
            is_short = self._recent and self._recent[-1].seconds < LEAST_S
            self._recent.append(self._recent.pop() + step if is_short else step)

    def skip(self, row: Mapping[str, Any]) -> None:
        """Passes over a row whose time is no step's alone: the machine slept, or there was no data."""
        self._last = (row["step"], row["tokens"]) if isinstance(row.get("tokens"), int) else None

    def interrupted(self) -> None:
        """Begins the last minutes anew: another launch."""
        self._recent.clear()

    def now(self) -> Speed | None:
        """Returns the speed of the last ten minutes; None with less, or before anything is usual.

        The longest step is left out: a pause that nobody told is in one step.
        """
        classes = self._classes.get(self._size, Counter())
        if classes.total() < LEAST_STEPS:
            return None
        spent = sum(self._recent, _Time())
        while self._recent:
            longest = max(self._recent, key=lambda time: time.seconds)
            oldest = self._recent[0]
            if spent.seconds - longest.seconds - oldest.seconds < SLOW_S:
                break
            spent -= self._recent.popleft()
        else:
            return None
        spent -= longest
        if spent.seconds < SLOW_S:
            return None
        speed, waited = spent.tokens / spent.seconds, spent.waited_s / spent.seconds
        fastest = max(
            part.tokens / part.seconds
            for part in _parts(time for time in self._recent if time is not longest)
        )
        return Speed(speed, fastest, _median(classes), waited, self._size[1])


def _parts(times: Iterable[_Time]) -> Iterator[_Time]:
    """Yields the sums of consecutive times of two minutes each; what is left over belongs to none."""
    part = _Time()
    for time in times:
        part += time
        if part.seconds >= PART_S:
            yield part
            part = _Time()


def _median(classes: Counter[int]) -> float:
    left = classes.total() / 2
    for number in sorted(classes):
        left -= classes[number]
        if left <= 0:
            return math.exp((number + 0.5) * WIDTH)
    raise ValueError("no speeds")
