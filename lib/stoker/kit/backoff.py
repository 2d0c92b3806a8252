"""Waiting longer after each failure, with jitter so that many do not come back at once."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from first_s to most_s seconds; each is drawn from the upper half of its step."""

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s:
            raise ValueError(f"a backoff needs 0 < first <= most, not {first_s} and {most_s}")
        self._first_s, self._most_s = first_s, most_s
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._step_s = first_s

    def next(self) -> float:
        """The seconds to wait before the next attempt."""
        step = self._step_s
        self._step_s = min(step * 2, self._most_s)
        return step * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start over at first_s: the last attempt went well."""
        self._step_s = self._first_s
