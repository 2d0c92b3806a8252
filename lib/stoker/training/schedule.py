"""The learning rate of a step, a pure function of the step's number."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    peak: float
    warmup_steps: int
    horizon: int  # the last step of the run, not of the launch
    min_ratio: float  # of the peak rate

    def rate(self, step: int) -> float:
        """Returns the rate of a step from 1 on: peak after warm-up, min_ratio * peak at the horizon."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, self.horizon - self.warmup_steps))
        ratio = self.min_ratio + (1.0 - self.min_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * ratio
