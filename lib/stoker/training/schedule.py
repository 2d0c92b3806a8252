"""The learning rate: linear warm-up, then a cosine down to the run's end, whatever restarts lie between."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """`horizon` is the run's last step, never a launch's; `min_ratio` is of the peak rate."""

    peak: float
    warmup_steps: int
    horizon: int
    min_ratio: float

    def rate(self, step: int) -> float:
        """The rate of a step, counted from 1: peak at the warm-up's end, min_ratio x peak at the horizon."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.horizon - self.warmup_steps))
        ratio = self.min_ratio + (1.0 - self.min_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * ratio
