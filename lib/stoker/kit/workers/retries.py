"""When each subject may be tried again after failures."""

from __future__ import annotations

import time

from stoker.kit.backoff import Backoff

_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 60.0


class Retries:
    """Waits by subject: exponential, with jitter, forgotten on success."""

    def __init__(self, *, first_s: float = _FIRST_RETRY_S, last_s: float = _LAST_RETRY_S) -> None:
        self._bounds = first_s, last_s
        self._backoffs: dict[str, Backoff] = {}
        self._failures: dict[str, int] = {}
        self.not_before: dict[str, float] = {}

    def failed(self, subject: str) -> float:
        """Count a failure; returns the seconds until the next try."""
        backoff = self._backoffs.setdefault(subject, Backoff(*self._bounds))
        wait = backoff.next()
        self._failures[subject] = self._failures.get(subject, 0) + 1
        self.not_before[subject] = time.monotonic() + wait
        return wait

    def retry_in(self, subject: str, seconds: float) -> None:
        """Have the subject wait so long after what was no failure of its own."""
        self.not_before[subject] = time.monotonic() + seconds

    def allows(self, subject: str) -> bool:
        """Whether the subject may be tried now."""
        return time.monotonic() >= self.not_before.get(subject, 0.0)

    def failures(self, subject: str) -> int:
        """How often in a row the subject failed."""
        return self._failures.get(subject, 0)

    def succeeded(self, subject: str) -> None:
        """Forget the subject's failures."""
        for each in (self._backoffs, self._failures, self.not_before):
            each.pop(subject, None)
