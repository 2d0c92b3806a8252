"""How fast a run goes through its plan, as its trainer's positions tell."""

from __future__ import annotations

from collections import deque

SPAN_S = 600.0  # evaluations and checkpoints come and go in it; a change of speed shows within minutes
LEAST_S = 60.0  # a single evaluation or slow step is no measure
SOON_S = 10.0  # a first measure, where a rough one now is worth more than a good one later


class WindowRate:
    """Windows a second over the last ten minutes of training, once there are `least_s` seconds of it; `known`
    is what an earlier life measured."""

    def __init__(self, known: float | None = None, *, least_s: float = LEAST_S) -> None:
        self._least_s = least_s
        self._samples: deque[tuple[float, int]] = deque()
        self.windows_per_s = known

    def sampled(self, windows: int, now: float) -> None:
        """The trainer has so many windows of the plan behind it, at `now` in monotonic seconds."""
        if self._samples and windows < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, windows))
        while len(self._samples) > 2 and self._samples[1][0] <= now - SPAN_S:
            self._samples.popleft()
        began, first = self._samples[0]
        if now - began >= self._least_s and windows > first:
            self.windows_per_s = (windows - first) / (now - began)

    def interrupted(self) -> None:
        """The trainer ended or waits: the time until its next step is not its pace."""
        self._samples.clear()
