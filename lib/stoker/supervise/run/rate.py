"""How fast a run goes through its plan, as its trainer's positions tell."""

from __future__ import annotations

from stoker.observe.rate import Rate

SPAN_S = 600.0  # evaluations and checkpoints come and go in it; a change of speed shows within minutes
LEAST_S = 60.0  # a single evaluation or slow step is no measure
SOON_S = 10.0  # a first measure, where a rough one now is worth more than a good one later


class WindowRate:
    """Windows a second over the last ten minutes of training, once there are `least_s` seconds of it; `known`
    is what an earlier life measured."""

    def __init__(self, known: float | None = None, *, least_s: float = LEAST_S) -> None:
        self._least_s = least_s
        self.windows_per_s = known
        self.interrupted()

    def sampled(self, windows: int, now: float) -> None:
        """The trainer has so many windows of the plan behind it, at `now` in monotonic seconds."""
        self._rate.note(windows, now)
        self.windows_per_s = self._rate.per_second or self.windows_per_s

    def interrupted(self) -> None:
        """The trainer ended or waits: the time until its next step is not its pace."""
        self._rate = Rate(SPAN_S, self._least_s)
