"""The learning rate of a step, a pure function of the step's number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to the peak, then what `name` says.

    cosine: falls to min_ratio * peak at the horizon (Loshchilov and Hutter 2017). constant: stays there.
    wsd (warm-up, stable, decay; Hu et al. 2024): stays at the peak up to step `decay_begins`, then falls as
    far by 1 - sqrt(share of the decay made), which ended below a linear decay (Haegele et al. 2024).
    """

    peak: float
    warmup_steps: int
    horizon: int  # the last step of the run, not of the launch
    min_ratio: float  # of the peak rate
    name: str = "cosine"
    decay_begins: int | None = None  # the last step at the peak; of wsd alone

    @classmethod
    def parse(cls, schedule: Mapping[str, Any], *, peak: float, horizon: int) -> Schedule:
        """Returns the schedule of a launch record."""
        fields = {name: value for name, value in schedule.items() if name != "decay"}
        return cls(peak=peak, horizon=horizon, **fields)

    def rate(self, step: int) -> float:
        """Returns the rate of a step from 1 on; after the horizon it stays what it is there."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if self.name == "constant":
            return self.peak
        begins = self.warmup_steps if self.decay_begins is None else self.decay_begins
        if step <= begins:
            return self.peak
        done = min(1.0, (step - begins) / max(1, self.horizon - begins))
        left = 1.0 - math.sqrt(done) if self.name == "wsd" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * left)
