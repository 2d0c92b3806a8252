"""How fast something gets on, and how long the rest will take at that speed."""

from __future__ import annotations

from collections import deque

LEAST_S = 2.0  # less than that is no measure
STEP_S = 0.5  # between two totals that are kept


class Rate:
    """The rate of a growing total over the last `over_s` seconds, or since it is known where that is less."""

    def __init__(self, over_s: float, least_s: float = LEAST_S) -> None:
        self._over_s, self._least_s = over_s, least_s
        self._seen: deque[tuple[float, float]] = deque()
        self._lost = 0.0  # what the total has shrunk by: no reason to think the work slower

    def note(self, total: float, now: float) -> None:
        """The total as it is now (monotonic seconds); one that shrank goes on from there."""
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
        """0 while there is nothing to tell it by."""
        if not self._seen:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended - began >= self._least_s else 0.0

    def left_s(self, left: float) -> float | None:
        """Seconds that what is left will take; None while that cannot be told."""
        rate = self.per_second
        return left / rate if rate > 0 else None
