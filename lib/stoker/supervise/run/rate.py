"""Measures how fast a run passes through its plan, from its trainer's positions."""

from __future__ import annotations

from stoker.observe.progress import Rate

SPAN_S = 600.0  # covers evaluations and checkpoints; a change of speed still shows within minutes
LEAST_S = 60.0  # shorter spans are distorted by a single evaluation or slow step
SOON_S = 10.0  # for a rough first measure soon


class WindowRate:
    """Windows per second over the last ten minutes of training, once it has `least_s` seconds; `known` is the
    rate measured before a restart."""

    def __init__(self, known: float | None = None, *, least_s: float = LEAST_S) -> None:
        self._least_s = least_s
        self.windows_per_s = known
        self.interrupted()

    def sampled(self, windows: int, now: float) -> None:
        """Records that the trainer has passed so many windows of the plan, at `now` in monotonic seconds."""
        self._rate.note(windows, now)
        self.windows_per_s = self._rate.per_second or self.windows_per_s

    def interrupted(self) -> None:
        """Restarts the measure after the trainer ended or waited: that time is not training time."""
        self._rate = Rate(SPAN_S, self._least_s)
