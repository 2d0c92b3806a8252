"""When the next checkpoint is due: every so many seconds, every so many steps, or both."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cadence:
    """`every_s` seconds of monotonic time and `every_steps` steps; None leaves that rule out."""

    every_s: float | None
    every_steps: int | None

    def due(self, *, step: int, saved_step: int, now: float, saved_at: float) -> bool:
        """Whether a run at `step` has to be saved; never when nothing was done since `saved_step`."""
        if step == saved_step:
            return False
        if self.every_steps and step % self.every_steps == 0:
            return True
        return self.every_s is not None and now - saved_at >= self.every_s
