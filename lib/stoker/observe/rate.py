"""Measures the rate of a growing total, and the time that the rest will take."""

from __future__ import annotations

from collections import deque

LEAST_S = 2.0  # a shorter time gives no rate
STEP_S = 0.5  # between two kept totals


class Rate:
    """The rate of a growing total over the last `over_s` seconds, or since the first note if later."""

    def __init__(self, over_s: float, least_s: float = LEAST_S) -> None:
        self._over_s, self._least_s = over_s, least_s
        self._seen: deque[tuple[float, float]] = deque()
        self._lost = 0.0  # the sum of all decreases, which must not count as slower work

    def note(self, total: float, now: float) -> None:
        """Takes in the total at a time (monotonic seconds); a smaller total becomes the new base."""
        total += self._lost
        if self._seen and total < self._seen[-1][1]:
            self._lost += self._seen[-1][1] - total
            total = self._seen[-1][1]
        if len(self._seen) > 1 and now < self._seen[-2][0] + STEP_S:
            self._seen.pop()
        self._seen.append((now, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._over_s:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 while there are too few notes."""
        if not self._seen:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended - began >= self._least_s else 0.0

    def left_s(self, left: float) -> float | None:
        """Returns the seconds that the rest will take; None while there is no rate."""
        rate = self.per_second
        return left / rate if rate > 0 else None
