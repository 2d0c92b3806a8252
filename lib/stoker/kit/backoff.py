"""Retry delays that grow after each failure, with jitter so that many clients do not return at once."""

from __future__ import annotations

import random
import time
from collections import defaultdict


class Backoff:
    """Delays that double from first_s to most_s seconds; each is drawn from the upper half of its step."""

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None = None) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self.failures, self._step_s = 0, first_s

    def next(self) -> float:
        """Counts a failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        step = self._step_s
        self._step_s = min(step * 2, self._most_s)
        return step * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Starts over at first_s after a success."""
        self.failures, self._step_s = 0, self._first_s


class Retries:
    """Retry delays by subject: exponential, with jitter, forgotten on success."""

    def __init__(self) -> None:
        self._failed: defaultdict[str, Backoff] = defaultdict(lambda: Backoff(0.5, 60.0))
        self.not_before: dict[str, float] = {}

    def failed(self, subject: str) -> float:
        """Counts a failure; returns the seconds until the next attempt."""
        wait_s = self._failed[subject].next()
        self.retry_in(subject, wait_s)
        return wait_s

    def retry_in(self, subject: str, seconds: float) -> None:
        """Delays the subject's next attempt by that many seconds without counting a failure."""
        self.not_before[subject] = time.monotonic() + seconds

    def allows(self, subject: str) -> bool:
        return time.monotonic() >= self.not_before.get(subject, 0.0)

    def failures(self, subject: str) -> int:
        """Returns the number of failures of the subject in a row."""
        return self._failed[subject].failures if subject in self._failed else 0

    def succeeded(self, subject: str) -> None:
        self._failed.pop(subject, None)
        self.not_before.pop(subject, None)
